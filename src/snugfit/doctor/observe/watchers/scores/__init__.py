"""Scores of evaluations, and what a script makes of them in its loops."""
