"""Devices and machines: the catalogue, the devices at hand, and kept calibrations."""
