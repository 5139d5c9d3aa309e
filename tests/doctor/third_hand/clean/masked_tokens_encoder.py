"""Masked language model from torch's layers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

WORDS, MASK = 40, 39
torch.manual_seed(0)


class Encoder(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.embed = nn.Embedding(WORDS, width)
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(width, 4, 64, 0.1, batch_first=True), 1
        )
        self.out = nn.Linear(width, WORDS)

    def forward(self, ids):
        return self.out(self.encoder(self.embed(ids)))


corpus = torch.randint(0, 38, (256, 16))
model = Encoder()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for epoch in range(3):
    for rows in torch.randperm(256).split(32):
        ids = corpus[rows].clone()
        hidden = torch.rand(ids.shape) < 0.2
        labels = ids.masked_fill(~hidden, -100)
        ids[hidden] = MASK
        loss = F.cross_entropy(model(ids).flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
