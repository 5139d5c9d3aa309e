"""A learning rate, found by a range test."""
