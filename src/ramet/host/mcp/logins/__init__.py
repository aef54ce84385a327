"""Logins of the user at servers of the Model Context Protocol (OAuth)."""
