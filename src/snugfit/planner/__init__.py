"""Prediction of memory and time of a run before it, and the choice of a plan that fits."""
