"""The client of the Model Context Protocol."""
