"""A run, from a recipe or from Python, to a finished folder."""
