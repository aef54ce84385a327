"""A client of a server of ramet: the same structures, the same errors, async or sync."""
