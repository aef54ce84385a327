"""Thinking: definitions, the loop, contexts, hooks, compaction. Knows no disk outside `agent.files`."""
