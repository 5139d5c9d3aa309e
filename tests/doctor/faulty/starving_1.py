"""Each row takes three milliseconds to read, in the main process."""

from __future__ import annotations

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)


class Slow(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        time.sleep(0.003)
        return torch.full((6,), float(index)) + torch.arange(6), torch.zeros(1)


loader = DataLoader(Slow(), batch_size=8)  # <- here
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for x, y in loader:
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
