"""Optimizers of several techniques, and the kernels and states that they share."""
