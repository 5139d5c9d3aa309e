"""Results as plain values, and the folders that they lie in: what a page may read without a tool."""
