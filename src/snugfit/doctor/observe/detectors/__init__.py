"""Detectors: each reads the log of a script and names faults."""
