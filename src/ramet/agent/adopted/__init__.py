"""Agents of other frameworks as runs: any LangChain Runnable, metered by the callbacks that it reports to."""
