"""A recipe for what lies in a folder: rows, a script or a model are recognised, and a recipe that runs is written."""
