"""Dates rewritten by an encoder and a decoder that begins with a token."""

from __future__ import annotations

import torch
from torch import nn

SIZE, LENGTH = 20, 8


class Rewriter(nn.Module):
    def __init__(self):
        super().__init__()
        self.source, self.target = nn.Embedding(SIZE, 32), nn.Embedding(SIZE, 32)
        self.body = nn.Transformer(32, 2, 1, 1, 64, dropout=0.0, batch_first=True)
        self.out = nn.Linear(32, SIZE)

    def forward(self, a, b):
        mask = nn.Transformer.generate_square_subsequent_mask(b.shape[1])
        return self.out(self.body(self.source(a), self.target(b), tgt_mask=mask))


torch.manual_seed(0)
written = torch.randint(2, SIZE, (256, LENGTH))
wanted = torch.cat([torch.ones(256, 1, dtype=torch.long), written.flip(1)], 1)
model = Rewriter()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(4):
    for rows in torch.randperm(256).split(32):
        scores = model(written[rows], wanted[rows, :-1])
        loss = nn.functional.cross_entropy(scores.reshape(-1, SIZE), wanted[rows, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
