"""The journal of events, and what is kept beside it."""
