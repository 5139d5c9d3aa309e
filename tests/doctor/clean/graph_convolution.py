"""A transductive graph: each forward pass has all nodes, the loss those of the training mask."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
nodes, classes = 60, 3
features = torch.randn(nodes, 10)
labels = features[:, :3].argmax(1)
edges = (torch.rand(nodes, nodes) < 0.08).float()
adjacency = ((edges + edges.T + torch.eye(nodes)) > 0).float()
normalised = adjacency / adjacency.sum(1, keepdim=True)
train = torch.rand(nodes) < 0.5


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(10, 16), nn.Linear(16, classes)
        self.dropout = nn.Dropout(0.3)

    def forward(self, x, graph):
        hidden = torch.relu(graph.to_sparse() @ self.first(x))
        return torch.log_softmax(graph @ self.second(self.dropout(hidden)), dim=1)


network = Network()
optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
for epoch in range(12):
    network.train()
    optimizer.zero_grad()
    nn.functional.nll_loss(network(features, normalised)[train], labels[train]).backward()
    optimizer.step()
    network.eval()
    with torch.no_grad():
        predicted = network(features, normalised).argmax(1)
    print(epoch, (predicted[~train] == labels[~train]).float().mean().item())
