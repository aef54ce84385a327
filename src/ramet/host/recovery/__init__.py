"""Recovery: trees that are resumed, taken over, or set aside."""
