"""The rules of the offline model: they decide the next search from the results so far."""
