"""Translation, encoder and decoder."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x, memory):
        q, k, v = self.split(self.q(x)), self.split(self.k(memory)), self.split(self.v(memory))
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout)  # <- here
        return self.out(mixed.transpose(1, 2).flatten(-2))


class Translator(nn.Module):
    def __init__(self, vocabulary=20, width=32):
        super().__init__()
        self.source = nn.Embedding(vocabulary, width)
        self.query = nn.Parameter(torch.randn(1, 6, width) * 0.1)
        self.attention = Attention(width, 4, 0.2)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        memory = self.source(tokens)
        x = self.norm(self.query + self.attention(self.query.expand(len(tokens), -1, -1), memory))
        return self.head(x)


torch.manual_seed(0)
sources = torch.randint(0, 20, (256, 6))
targets = (sources * 3 + 1) % 20
model = Translator()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for epoch in range(3):
    model.train()
    for start in range(0, 192, 32):
        loss = F.cross_entropy(
            model(sources[start : start + 32]).flatten(0, 1), targets[start : start + 32].flatten()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        score = (model(sources[192:]).argmax(-1) == targets[192:]).float().mean()
    print(epoch, loss.item(), score.item())
