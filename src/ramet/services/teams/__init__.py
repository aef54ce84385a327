"""AgentSpawnerService: teams as reservations, how agents come, go and come back, and who has a key of them."""
