"""The parts that several techniques are built from."""
