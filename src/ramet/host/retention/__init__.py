"""The retention of trees, results and folders."""
