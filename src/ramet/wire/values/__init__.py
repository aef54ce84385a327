"""Values that cross the channel as data."""
