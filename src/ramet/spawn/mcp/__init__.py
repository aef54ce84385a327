"""The connections of runs to the servers of the Model Context Protocol in their sandboxes."""
