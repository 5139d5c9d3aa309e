"""Labels: names of classes, sets of them for each row, and numbers that are learned."""
