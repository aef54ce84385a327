"""Programs to copy from: `python -m ramet.examples.simple_agent` and `python -m ramet.examples.team_scenario`."""
