"""The conversation of an agent: compacted, summarised, and kept valid."""
