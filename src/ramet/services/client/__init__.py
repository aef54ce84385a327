"""A client of a ramet server, async or synchronous, with the same structures and the same errors."""
