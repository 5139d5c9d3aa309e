"""Findings on losses and their terms."""
