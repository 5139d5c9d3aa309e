"""Weights in few bits: formats, layers, loading and saving."""
