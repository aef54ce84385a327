"""The board of tasks that agents share."""
