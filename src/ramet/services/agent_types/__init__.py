"""The agent types that ship, and how others are found."""
