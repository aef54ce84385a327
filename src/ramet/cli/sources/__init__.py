"""Where the answers come from, for commands that look at runs, steer them and schedule more."""
