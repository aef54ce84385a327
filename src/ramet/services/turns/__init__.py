"""AgentService: turns with one agent, in order, for whoever has its key."""
