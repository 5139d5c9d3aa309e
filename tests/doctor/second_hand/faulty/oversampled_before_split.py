"""The rare class is copied until both are equal, and only then are the rows split: copies stand on both sides."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(10)


def oversample(x, y):
    rare = torch.nonzero(y == 1).squeeze(1)
    copies = rare[torch.randint(0, len(rare), (int((y == 0).sum()) - len(rare),))]
    return torch.cat([x, x[copies]]), torch.cat([y, y[copies]])


def train_valid_split(x, y, share=0.25):
    order = torch.randperm(len(x))
    cut = int(len(x) * (1 - share))
    return TensorDataset(x[order[:cut]], y[order[:cut]]), TensorDataset(x[order[cut:]], y[order[cut:]])


x = torch.randn(400, 9)
y = (x[:, 0] + 0.5 * x[:, 1] > 1.2).long()
train_ds, valid_ds = train_valid_split(*oversample(x, y))  # <- here
train_dl = DataLoader(train_ds, batch_size=32, shuffle=True)
valid_dl = DataLoader(valid_ds, batch_size=64)
model = nn.Sequential(nn.Linear(9, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 2))
opt = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(3):
    model.train()
    for xb, yb in train_dl:
        loss = nn.functional.cross_entropy(model(xb), yb)
        loss.backward()
        opt.step()
        opt.zero_grad()
    model.eval()
    with torch.no_grad():
        valid = sum(
            nn.functional.cross_entropy(model(xb), yb, reduction="sum") for xb, yb in valid_dl
        )  # <- here
    print(epoch, valid.item() / len(valid_ds))
