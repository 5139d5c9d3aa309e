"""The real step on fake tensors, recorded: operators, storages, and the pieces of a run."""
