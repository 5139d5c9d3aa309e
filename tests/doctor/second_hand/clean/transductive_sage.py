"""A graph that is one batch: every node is in each forward pass, and masks say which labels train and which are held out."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Graph:
    x: torch.Tensor
    adjacency: torch.Tensor
    y: torch.Tensor
    train_mask: torch.Tensor
    val_mask: torch.Tensor
    test_mask: torch.Tensor


def planted_partition(n=150, k=3):
    y = torch.randint(0, k, (n,))
    probability = torch.where(y[:, None] == y[None], 0.12, 0.015)
    upper = torch.triu(torch.rand(n, n) < probability, 1)
    a = (upper | upper.T).float()
    order = torch.randperm(n)
    masks = [torch.zeros(n, dtype=torch.bool) for _ in range(3)]
    for mask, rows in zip(masks, order.split(50), strict=True):
        mask[rows] = True
    return Graph(torch.randn(n, 12) + F.one_hot(y, 12), a / a.sum(1, keepdim=True).clamp(min=1), y, *masks)


class SAGEConv(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.own, self.neighbours = nn.Linear(cin, cout), nn.Linear(cin, cout, bias=False)

    def forward(self, x, adjacency):
        return self.own(x) + self.neighbours(adjacency @ x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = SAGEConv(12, 24), SAGEConv(24, 3)

    def forward(self, x, adjacency):
        x = F.dropout(self.conv1(x, adjacency).relu(), 0.3, training=self.training)
        return self.conv2(x, adjacency)


torch.manual_seed(11)
data, model = planted_partition(), Net()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


def train():
    model.train()
    optimizer.zero_grad()
    out = model(data.x, data.adjacency)
    loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
    loss.backward()
    optimizer.step()
    return float(loss)


@torch.no_grad()
def test():
    model.eval()
    pred = model(data.x, data.adjacency).argmax(dim=-1)
    return [
        int((pred[mask] == data.y[mask]).sum()) / int(mask.sum())
        for mask in (data.train_mask, data.val_mask, data.test_mask)
    ]


for epoch in range(1, 25):
    loss = train()
    train_acc, val_acc, test_acc = test()
    if epoch % 8 == 0:
        print(
            f"Epoch {epoch:03d} loss {loss:.3f} train {train_acc:.3f} val {val_acc:.3f} test {test_acc:.3f}"
        )
