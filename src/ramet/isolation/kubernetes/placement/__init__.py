"""Which pod a run gets: its own, a warm one, or a share of its team's."""
