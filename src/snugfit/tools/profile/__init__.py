"""The time and the memory of an update."""
