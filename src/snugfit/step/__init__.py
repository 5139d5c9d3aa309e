"""One update from one batch: what a user's own loop imports."""
