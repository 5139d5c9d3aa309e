"""Time series as data: many series, and windows over them."""
