"""Calls of modules, and what surrounds them: modes, states, files, dropout, settings."""
