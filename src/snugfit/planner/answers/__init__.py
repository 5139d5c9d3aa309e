"""A plan's answer: its figures, the choice and its reasons as plain values, and as text. Loads no torch."""
