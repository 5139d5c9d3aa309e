"""Checkpoints of a run: what is written, when, and how each rank writes its part."""
