"""The suite that every backend passes, including third-party ones: `ramet.testing.conformance.isolation.suite`."""
