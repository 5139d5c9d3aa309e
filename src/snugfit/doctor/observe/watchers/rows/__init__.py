"""Rows of the data on their way to the model: which came before, in which order, and with which targets."""
