"""Tables as data: numbers and categories."""
