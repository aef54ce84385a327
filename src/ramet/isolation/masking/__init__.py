"""Masking of secrets in output."""
