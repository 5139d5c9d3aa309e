"""Losses: what they are given, those of torch and those that a script writes itself."""
