"""`ramet wrap`: a program of the user at the terminal of the user, in a sandbox."""
