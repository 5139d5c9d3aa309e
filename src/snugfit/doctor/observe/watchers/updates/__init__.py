"""The way from a loss to the weights: backward passes, clipping, loss scales, steps."""
