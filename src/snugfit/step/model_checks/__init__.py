"""Checks of a model before a step trusts it: padding, rows that touch each other, inputs that change."""
