"""The Memory tool."""
