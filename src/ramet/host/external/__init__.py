"""Programs of other makers on this machine: where they are, and how each is configured to work in a sandbox."""
