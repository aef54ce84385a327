"""The built-in transport formats, which clients of providers use. Pure functions: no I/O, no package of a provider."""
