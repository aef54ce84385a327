"""The command `ramet ask`."""
