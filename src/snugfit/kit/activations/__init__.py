"""Activations: the tensors that autograd keeps for backward, and which blocks keep theirs within a number of bytes."""
