"""The folder that a run works in: made, measured, checkpointed, and removed."""
