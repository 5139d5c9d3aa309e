"""Language models: the head that makes logits and losses that do without all of them at once, attention, caches of keys and values, generation."""
