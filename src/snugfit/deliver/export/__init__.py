"""Exports: a trained model in the form that other libraries load, read back by them and compared with what was scored."""
