"""Rows to train on: sources, file formats, splits, tokens, and the loader that resumes."""
