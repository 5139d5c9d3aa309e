"""The engine of work of many runs: runs of one recipe with something changed, in one folder that can be gone on with."""
