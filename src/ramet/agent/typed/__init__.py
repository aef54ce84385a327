"""The types of tasks as data, and back."""
