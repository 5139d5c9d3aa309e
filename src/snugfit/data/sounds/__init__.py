"""Sounds as data."""
