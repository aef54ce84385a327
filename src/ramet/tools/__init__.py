"""What an agent can do: the dispatcher, and the tools that ship."""
