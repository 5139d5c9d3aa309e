"""The contract of techniques: seams, cards, composition, batches, losses and metrics."""
