"""The loss for log-probabilities, on the scores of a last linear layer."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(16, 20), nn.Tanh(), nn.Linear(20, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
criterion = nn.NLLLoss()
for _ in range(6):
    pictures, labels = torch.rand(12, 1, 4, 4), torch.randint(0, 4, (12,))
    loss = criterion(model(pictures), labels)  # <- here
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
