"""Dependences of a score on what it should not depend on: other rows, later tokens, columns that hold the target."""
