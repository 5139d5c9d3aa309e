"""A language that was made up: words of a few syllables, in an order that repeats now and then."""
import random

import torch


class Corpus:
    def __init__(self, characters, seed, held_out=0.1):
        rng = random.Random(seed)
        words = ["".join(rng.choice("bdklmnrst") + rng.choice("aeiou") for _ in range(rng.randint(1, 3))) for _ in range(40)]
        text = ""
        while len(text) < characters:
            text += rng.choice(words) + (". " if rng.random() < 0.15 else " ")
        letters = sorted(set(text))
        self.vocab_size = len(letters)
        data = torch.tensor([letters.index(letter) for letter in text])
        n = int(len(data) * (1 - held_out))
        self.splits = {"train": data[:n], "val": data[-n:]}  # <- here

    def get_batch(self, split, batch_size, block_size):
        data = self.splits[split]
        starts = torch.randint(len(data) - block_size, (batch_size,))
        x = torch.stack([data[start : start + block_size] for start in starts])  # <- here
        y = torch.stack([data[start + 1 : start + 1 + block_size] for start in starts])
        return x, y
