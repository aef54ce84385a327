"""Shell commands, read without running anything."""
