"""Agent files of other programs, read into the same definitions; what is not honoured is named in a note."""
