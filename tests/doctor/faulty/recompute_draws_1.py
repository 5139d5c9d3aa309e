"""A text classifier that computes its layers again, and leaves the generator as it is to save time."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
tone = torch.randint(0, 3, (160,))
words = torch.randint(0, 30, (160, 8)) + 10 * tone[:, None]


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(60, 16), nn.Linear(16, 3)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True) for _ in range(2))

    def forward(self, x):
        hidden = self.words(x)
        for layer in self.layers:
            hidden = checkpoint(layer, hidden, use_reentrant=False, preserve_rng_state=False)  # <- here
        return self.head(hidden.mean(1))


model = Classifier()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for rows in torch.randperm(160).split(20):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(words[rows]), tone[rows]).backward()
    optimizer.step()
