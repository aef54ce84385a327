"""Commands that look at runs and steer them."""
