"""Acts of a script as plain values, the log that holds them, and views of it: what detectors read."""
