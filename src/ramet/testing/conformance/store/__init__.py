"""The suite that every store passes, a stranger's too: `ramet.testing.conformance.store.suite`."""
