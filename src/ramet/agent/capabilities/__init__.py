"""The capabilities and tasks of an agent."""
