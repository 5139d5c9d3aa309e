"""Watchers: each writes one kind of event of a running script into the log."""
