"""The suite that every backend passes, a stranger's too: `ramet.testing.conformance.isolation.suite`."""
