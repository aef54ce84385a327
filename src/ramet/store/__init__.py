"""Stores: one contract, three implementations, one test suite. `ramet.store.contract` is the entry point."""
