"""The figures of one plan: traced pieces, carried on to the depth and the micro-batches of the run."""
