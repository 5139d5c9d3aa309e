"""Observers of a model while it trains, for trackers: its answers, the spread of its weights, the pictures that it gets wrong."""
