"""Attention and the functions that it is made of: masks, places, softmax, products with weights."""
