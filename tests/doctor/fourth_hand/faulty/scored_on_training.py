"""Scan classifier whose validation is the training."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

torch.manual_seed(0)
ill = torch.randint(0, 2, (200,))
scans = torch.randn(200, 1, 6, 6, 6) + 0.3 * ill[:, None, None, None, None]
train, valid = random_split(TensorDataset(scans, ill), [160, 40])
train_loader = DataLoader(train, 20, shuffle=True)
valid_loader = DataLoader(valid, 20)
net = nn.Sequential(nn.Conv3d(1, 6, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(6 * 64, 2))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)


def evaluate(loader):
    net.eval()
    right = 0
    with torch.no_grad():
        for x, y in loader:
            right += (net(x).argmax(1) == y).sum().item()  # <- here
    net.train()
    return right / len(loader.dataset)


best = 0.0
for epoch in range(4):
    for x, y in train_loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    score = evaluate(train_loader)  # <- here
    if score > best:
        best = score
        torch.save(net.state_dict(), "best.pt")
    print(epoch, "validation accuracy", score)
