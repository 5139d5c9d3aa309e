"""Techniques that change where and when something is computed, and not the result."""
