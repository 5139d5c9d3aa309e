"""Small trained layers beside frozen ones, as LoRA and its kin have them."""
