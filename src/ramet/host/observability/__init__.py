"""Logs, audit, traces and metrics."""
