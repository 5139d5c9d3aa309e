"""Transfer learning in two phases."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(256, 10)
y = x[:, :3].argmax(1)
body = nn.Sequential(nn.Linear(10, 32), nn.ReLU())
model = nn.Sequential(body, nn.Linear(32, 3))
loader = DataLoader(TensorDataset(x, y), 32, shuffle=True)
for phase in ("head", "all"):
    for parameter in body.parameters():
        parameter.requires_grad = phase == "all"
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=5e-3 if phase == "head" else 1e-3)
    for _epoch in range(2):
        for rows, labels in loader:
            loss = nn.functional.cross_entropy(model(rows), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(phase, loss.item())
