"""The journal of events, and data that is stored with the journal."""
