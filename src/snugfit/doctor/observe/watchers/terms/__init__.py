"""Terms of what is differentiated: their signs, sums, means, and the numbers that they are made of."""
