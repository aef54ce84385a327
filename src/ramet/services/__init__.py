"""The runtime as services for any program: teams, turns, control, packaging. Message bodies stay opaque."""
