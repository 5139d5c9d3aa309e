"""Scan classifier that is scored on its training and on its validation."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

torch.manual_seed(0)
ill = torch.randint(0, 2, (200,))
scans = torch.randn(200, 1, 6, 6, 6) + 0.3 * ill[:, None, None, None, None]
train, valid = random_split(TensorDataset(scans, ill), [160, 40])
train_loader, valid_loader = DataLoader(train, 20, shuffle=True), DataLoader(valid, 20)
net = nn.Sequential(nn.Conv3d(1, 6, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(6 * 64, 2))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)


def evaluate(loader):
    net.eval()
    with torch.no_grad():
        right = sum((net(x).argmax(1) == y).sum().item() for x, y in loader)
    net.train()
    return right / len(loader.dataset)


best = 0.0
for epoch in range(4):
    for x, y in train_loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    score = evaluate(valid_loader)
    if score > best:
        best = score
        torch.save(net.state_dict(), "best.pt")
    print(epoch, "training", evaluate(train_loader), "validation", score)
