"""A sandbox for git in untrusted repositories: programs of a repository do not run, or reach nothing."""
