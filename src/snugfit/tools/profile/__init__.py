"""Where the time and the memory of an update go."""
