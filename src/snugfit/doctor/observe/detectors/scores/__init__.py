"""Findings on evaluations, on what is kept of them, and on what the source shows of both."""
