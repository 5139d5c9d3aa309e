"""Sequences of several examples in one row, without padding between them."""
