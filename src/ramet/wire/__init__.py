"""The bytes that pass between a host and its guests: frames, requests, values, functions."""
