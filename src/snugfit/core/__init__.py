"""The contract of techniques: seams, cards, composition, batches and losses."""
