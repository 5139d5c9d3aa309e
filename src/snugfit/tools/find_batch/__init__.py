"""The micro-batch that is fastest or largest, found by trying."""
