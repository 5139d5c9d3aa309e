"""Readers of the autograd graph: what made a tensor, what it depends on, of which terms a loss is made."""
