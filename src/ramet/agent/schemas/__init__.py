"""JSON schemas from outside, checked at a bounded cost."""
