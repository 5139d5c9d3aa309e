"""Mixed precision: autocast, types of 16 bits, and how products round."""
