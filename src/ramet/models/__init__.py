"""Whom an agent asks: providers by name, scripted and offline models, retries, prices."""
