"""The identity of a run: what a resume must find unchanged."""
