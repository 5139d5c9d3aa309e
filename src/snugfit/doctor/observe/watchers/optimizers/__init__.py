"""Optimizers and the state of their gradients, schedules, seeds, and what ranks exchange."""
