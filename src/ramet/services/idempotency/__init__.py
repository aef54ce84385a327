"""Repeated requests: a POST with an `Idempotency-Key` takes effect once, and each repetition gets the first answer."""
