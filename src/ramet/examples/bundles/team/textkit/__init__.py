"""A little code for words, which a team shares."""
