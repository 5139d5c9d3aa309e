"""Losses that tasks and techniques share, and where a model's scores and numbers stand for them."""
