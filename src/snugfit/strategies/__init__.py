"""Training on several devices, one file each strategy."""
