"""Git for untrusted repositories: worktrees, and git itself in a sandbox."""
