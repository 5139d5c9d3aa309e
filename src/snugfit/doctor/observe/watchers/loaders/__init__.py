"""Data loaders: what they hand out, and what their workers draw."""
