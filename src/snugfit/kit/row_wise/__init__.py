"""Computation of a model one row after another, and the checks that its rows are independent."""
