"""Certify: whether a setup keeps the laws, each compared step by step on copies of the model."""
