"""Agents: definitions, the loop, contexts, hooks, compaction. Only `agent.files` accesses the disk."""
