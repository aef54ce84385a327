"""The data sources of commands that inspect, control and schedule runs."""
