"""Commands that run beside an agent, and whose output it reads as messages."""
