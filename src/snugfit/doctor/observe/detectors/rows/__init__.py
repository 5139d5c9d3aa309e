"""Findings on what a model is given: rows, labels, tokens, random numbers."""
