"""Types of tasks as data and back."""
