"""The image that pods run: ramet, its base, and its bytecode."""
