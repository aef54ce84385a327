"""Programs of other makers as runs: what they ask of the host, and the prompt and the reply of a turn."""
