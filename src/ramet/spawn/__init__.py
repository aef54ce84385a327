"""The module that spawns runs, and the modules that manage runs until their end."""
