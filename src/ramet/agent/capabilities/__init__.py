"""What an agent may use and can be asked."""
