"""Techniques that change the numbers in which a model is computed."""
