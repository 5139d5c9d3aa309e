"""One graph is one batch: every node has a loss, and a mask leaves those of the training."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(4)
count = 160
label = torch.randint(0, 3, (count,))
links = (torch.rand(count, count) < 0.02 + 0.1 * (label[:, None] == label)).float()
links = ((links + links.T + torch.eye(count)) > 0).float()
links = links / links.sum(1, keepdim=True)
nodes = nn.functional.one_hot(label, 3).float() + torch.randn(count, 3)
known = torch.zeros(count)
known[torch.randperm(count)[:50]] = 1
held_out = known == 0


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 16), nn.Linear(16, 3)

    def forward(self, nodes):
        return self.second(links @ self.first(links @ nodes).relu())


net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
criterion = nn.CrossEntropyLoss(reduction="none")
for _epoch in range(30):
    loss = torch.dot(criterion(net(nodes), label), known) / known.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        predicted = net(nodes).argmax(1)
        right = (predicted[held_out] == label[held_out]).float().mean().item()
print(right)
