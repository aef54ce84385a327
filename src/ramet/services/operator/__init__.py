"""The operator's view of a server's kernel: runs, questions, schedules, states, gates."""
