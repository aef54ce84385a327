"""Data and decisions: no clock, disk, network, asyncio or random."""
