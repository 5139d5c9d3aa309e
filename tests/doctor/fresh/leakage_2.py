"""Two subsets of one data set that overlap by ten rows."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

torch.manual_seed(1)
everything = TensorDataset(torch.randn(100, 9), torch.randn(100, 1))
train = DataLoader(Subset(everything, range(0, 80)), batch_size=20, shuffle=True)
valid = DataLoader(Subset(everything, range(70, 100)), batch_size=30)
net = nn.Sequential(nn.Linear(9, 20), nn.ReLU(), nn.Linear(20, 1))
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
for _epoch in range(2):
    net.train()
    for x, y in train:
        opt.zero_grad()
        nn.functional.mse_loss(net(x), y).backward()
        opt.step()
    net.eval()
    with torch.no_grad():
        for x, y in valid:
            print(nn.functional.mse_loss(net(x), y).item())  # <- here
