"""AgentService: turns with one agent, in order, for clients that have its key."""
