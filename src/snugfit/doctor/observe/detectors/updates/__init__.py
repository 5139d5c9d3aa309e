"""Findings on updates: gradients, parameters, learning rates, schedules, modes of the model."""
