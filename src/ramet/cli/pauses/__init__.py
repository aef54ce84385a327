"""Trees that pause at a limit: asked about at the terminal, or left for `ramet resume`."""
