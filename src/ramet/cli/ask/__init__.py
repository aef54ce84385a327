"""`ramet ask`."""
