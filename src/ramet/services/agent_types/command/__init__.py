"""Agents of the type "command": programs that speak frames on stdin and stdout."""
