"""The features are detached, so the encoder never learns."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.head = nn.Sequential(nn.Linear(6, 16), nn.ReLU()), nn.Linear(16, 2)

    def forward(self, x):
        features = self.encoder(x).detach()  # <- here
        return self.head(features)


model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(5):
    optimizer.zero_grad()
    scores = model(torch.randn(16, 6))
    nn.functional.cross_entropy(scores, torch.randint(0, 2, (16,))).backward()
    optimizer.step()
