"""Tuning: settings drawn from a search space, each tried by a run, the weak ones pruned."""
