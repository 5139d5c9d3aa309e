"""Readers of a script's source: its syntax, the way of values through it, and faults that it shows before it runs."""
