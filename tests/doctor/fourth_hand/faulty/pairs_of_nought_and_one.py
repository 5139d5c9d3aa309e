"""Sentence pairs by cosine."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
topic = torch.randint(0, 6, (300,))
sentences = torch.randn(6, 25)[topic] + 0.5 * torch.randn(300, 25)
tower = nn.Sequential(nn.Linear(25, 40), nn.Tanh(), nn.Linear(40, 16))
criterion = nn.CosineEmbeddingLoss(margin=0.2)
optimizer = torch.optim.Adam(tower.parameters(), lr=2e-3)
for _step in range(50):
    one, other = torch.randint(0, 300, (2, 64))
    same = (topic[one] == topic[other]).float()
    loss = criterion(tower(sentences[one]), tower(sentences[other]), same)  # <- here
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
