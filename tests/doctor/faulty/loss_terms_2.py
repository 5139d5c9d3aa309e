"""A classifier whose features are drawn to centres of their classes, summed up over the batch."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
kind = torch.randint(0, 5, (400,))
pictures = torch.randn(400, 1, 8, 8) + 0.4 * kind[:, None, None, None]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 16))
        self.head, self.centres = nn.Linear(16, 5), nn.Parameter(torch.randn(5, 16))

    def forward(self, x):
        features = self.body(x)
        return features, self.head(torch.relu(features))


net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)
for epoch in range(2):
    for rows in torch.randperm(400).split(40):
        features, scores = net(pictures[rows])
        pull = (features - net.centres[kind[rows]]).square().sum(dim=1).sum() / 2  # <- here
        loss = nn.functional.cross_entropy(scores, kind[rows])
        loss = loss + pull
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
