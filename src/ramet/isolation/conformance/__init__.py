"""The suite that every backend passes, a stranger's too: `ramet.isolation.conformance.suite`."""
