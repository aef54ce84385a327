"""Sandboxes of the host's trees: started, reached, and cleaned up."""
