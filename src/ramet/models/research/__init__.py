"""How the offline model works: rules that decide what to search next, from what was found so far."""
