"""Git for repositories that nobody trusts: worktrees, and git itself in a sandbox."""
