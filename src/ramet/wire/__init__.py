"""Bytes between a host and its guests: frames, requests, values, functions."""
