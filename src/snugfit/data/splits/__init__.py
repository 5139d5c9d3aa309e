"""Rows to train on and rows to validate on, and what is on both sides."""
