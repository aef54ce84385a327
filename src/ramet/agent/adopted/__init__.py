"""Agents of other frameworks as runs: any LangChain Runnable, metered by its callbacks."""
