"""Tools on recipes and on Python objects: the doors between them and `snugfit.tools`."""
