"""Rows that are not held in memory: read, made or taken from a file when they are asked for."""
