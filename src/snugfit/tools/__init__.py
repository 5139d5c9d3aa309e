"""Tools that look at a training before it runs: find a rate or a batch, profile, certify, cross-validate."""
