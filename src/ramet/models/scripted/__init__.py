"""A model that plays a written dialogue."""
