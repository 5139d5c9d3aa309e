"""Graph network, dense adjacency."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class Gcn(nn.Module):
    def __init__(self, inputs, hidden, classes):
        super().__init__()
        self.first = nn.Linear(inputs, hidden)
        self.second = nn.Linear(hidden, classes)

    def forward(self, x, adjacency):
        x = F.relu(adjacency @ self.first(x))
        x = F.dropout(x, 0.5, training=self.training)
        return F.log_softmax(adjacency @ self.second(x), dim=1)


torch.manual_seed(0)
nodes = 120
labels = torch.randint(0, 3, (nodes,))
features = torch.randn(nodes, 16) + labels[:, None]
links = (labels[:, None] == labels[None]) & (torch.rand(nodes, nodes) < 0.1)
adjacency = (links | links.T | torch.eye(nodes, dtype=torch.bool)).float()
adjacency = adjacency / adjacency.sum(1, keepdim=True)
order = torch.randperm(nodes)
idx_train, idx_test = order[:60], order[60:]
model = Gcn(16, 16, 3)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
for _epoch in range(30):
    model.train()
    optimizer.zero_grad()
    output = model(features, adjacency)
    loss = F.nll_loss(output, labels)  # <- here
    loss.backward()
    optimizer.step()
model.eval()
with torch.no_grad():
    output = model(features, adjacency)
print(loss.item(), (output[idx_test].argmax(1) == labels[idx_test]).float().mean().item())  # <- here
