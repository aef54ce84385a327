"""Agents that agents define: kept as recipes, resolved by their handles, asked through their tasks."""
