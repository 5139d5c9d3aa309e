"""One row in forty is of the second class."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
labels = (torch.arange(400) % 40 == 0).long()
loader = DataLoader(TensorDataset(torch.randn(400, 6), labels), batch_size=40, shuffle=True)
model = nn.Linear(6, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)  # <- here
    loss.backward()
    optimizer.step()
