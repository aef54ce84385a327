"""The one birthplace of runs, and what keeps them until their end."""
