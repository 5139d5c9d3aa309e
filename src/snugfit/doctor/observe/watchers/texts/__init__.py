"""Texts on their way to a model: tokenizers, vocabularies, special tokens, padding."""
