"""Trials of each mechanism, in a throw-away process: forbidden operations must fail. For `ramet.isolation.probe`."""
