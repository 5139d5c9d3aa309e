"""One ReLU at two places."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 1)
        self.relu = nn.ReLU()

    def forward(self, x):
        x = self.relu(self.first(x))
        x = self.relu(self.second(x))
        return self.third(x)


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(4):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(torch.randn(16, 6)), torch.randn(16, 1)).backward()  # <- here
    optimizer.step()
