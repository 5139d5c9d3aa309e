"""Metrics: sums over rows and scores of all rows at once."""
