"""The event log of a run, and the trackers that follow it."""
