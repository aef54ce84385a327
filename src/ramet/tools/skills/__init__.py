"""The tool with which an agent reads the skills that it may use."""
