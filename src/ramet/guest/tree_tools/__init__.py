"""The tools with which a program of another maker leads agents, as a server of the Model Context Protocol."""
