"""A new iterator for every batch: the data set is prepared again each time."""

from __future__ import annotations

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(1)


class Files(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.randn(8), torch.randn(1)


loader = DataLoader(Files(), batch_size=10, shuffle=True)  # <- here
net = nn.Linear(8, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.01)
for _step in range(10):
    x, y = next(iter(loader))
    opt.zero_grad()
    nn.functional.mse_loss(net(x), y).backward()
    opt.step()
