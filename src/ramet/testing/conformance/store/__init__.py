"""The suite that every store passes, including third-party ones: `ramet.testing.conformance.store.suite`."""
