# %% [markdown]
"""Prices as a notebook: features and targets are scaled by the training rows, and errors are told in the old unit."""

# %%
from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
area = 40 + 60 * torch.rand(500, 1)
floor = torch.randint(0, 8, (500, 1)).float()
X = torch.cat([area, floor], 1)
y = 80_000 + 2_500 * area + 1_000 * floor + 5_000 * torch.randn(500, 1)

# %%
n = 400
x_mean, x_std, y_mean, y_std = X[:n].mean(0), X[:n].std(0), y[:n].mean(), y[:n].std()
Xs, ys = (X - x_mean) / x_std, (y - y_mean) / y_std

# %%
model = nn.Sequential(nn.Linear(2, 24), nn.ReLU(), nn.Linear(24, 1))
opt = torch.optim.Adam(model.parameters(), lr=5e-3)
for _epoch in range(5):
    for rows in torch.randperm(n).split(40):
        loss = nn.functional.mse_loss(model(Xs[rows]), ys[rows])
        opt.zero_grad()
        loss.backward()
        opt.step()

# %%
with torch.no_grad():
    prediction = model(Xs[n:]) * y_std + y_mean
    print("RMSE", (prediction - y[n:]).square().mean().sqrt().item())
