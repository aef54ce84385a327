"""A sandbox for git in repositories that nobody trusts: programs of a repository do not run, or reach nothing."""
