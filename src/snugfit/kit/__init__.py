"""What several techniques are built from."""
