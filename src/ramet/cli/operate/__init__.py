"""Commands that inspect and control runs."""
