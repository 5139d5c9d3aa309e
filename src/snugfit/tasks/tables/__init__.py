"""Tasks on tables of numbers and categories, and on series in them."""
