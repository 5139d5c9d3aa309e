"""Weights that lie in host memory and come to the device while they are used."""
