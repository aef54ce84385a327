"""Agents that agents write down: kept as recipes, found again by their handles, asked through their tasks."""
