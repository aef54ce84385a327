"""Agents of the type "llm"."""
