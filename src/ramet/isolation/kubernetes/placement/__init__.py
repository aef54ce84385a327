"""The choice of a run's pod: its own, a warm one, or a share of its team's."""
