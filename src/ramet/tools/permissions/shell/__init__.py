"""Shell commands, parsed without running anything."""
