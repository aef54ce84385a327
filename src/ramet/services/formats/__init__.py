"""The transport formats that ship: what providers' own clients speak. Pure functions; no I/O, no provider's package."""
