"""The suite that every store passes, a stranger's too: `ramet.store.conformance.suite`."""
