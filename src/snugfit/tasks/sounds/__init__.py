"""Tasks on sounds."""
