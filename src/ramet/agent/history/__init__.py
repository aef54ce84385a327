"""The conversation of an agent: compaction, summaries, and validity."""
