"""The speed of the device at hand, measured."""
