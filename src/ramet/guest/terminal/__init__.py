"""Programs at a terminal inside a sandbox."""
