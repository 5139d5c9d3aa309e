"""The training of a run: windows to updates, evaluations, the best model, and ways to stop."""
