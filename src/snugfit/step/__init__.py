"""An update from one batch: the part that a user's own loop imports."""
