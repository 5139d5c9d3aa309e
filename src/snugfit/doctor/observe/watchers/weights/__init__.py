"""Weights and states of modules, and what can be read off a module: fingerprints, norms, what was loaded or put in."""
