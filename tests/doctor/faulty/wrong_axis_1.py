"""Tokens are classified; the log-softmax runs over the rows that were picked."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(30, 16), nn.Flatten(), nn.Linear(16 * 5, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
loss_of = nn.NLLLoss()
for _ in range(10):
    tokens = torch.randint(0, 30, (24, 5))
    log_probabilities = torch.log_softmax(model(tokens), dim=0)  # <- here
    loss = loss_of(log_probabilities[:20], tokens[:20, 0] % 4)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
