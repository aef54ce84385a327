"""The runtime as services that any program can use: teams, turns, control, packaging. Message bodies stay opaque."""
