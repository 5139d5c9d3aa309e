# %% [markdown]
"""Prices of flats, as a notebook would have it: the targets are some hundred thousand, the network's outputs near 0."""

# %%
from __future__ import annotations

import torch
import torch.nn as nn

torch.manual_seed(0)

# %%
rooms = torch.randint(1, 6, (600, 1)).float()
area = 18 * rooms + 6 * torch.randn(600, 1)
age = 80 * torch.rand(600, 1)
X = torch.cat([rooms, area, age], dim=1)
y = 90_000 + 2_400 * area - 500 * age + 8_000 * torch.randn(600, 1)

# %%
mean, std = X[:480].mean(0), X[:480].std(0)
X = (X - mean) / std
X_train, X_val, y_train, y_val = X[:480], X[480:], y[:480], y[480:]

# %%
model = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
loss_fn = nn.MSELoss()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)

# %%
history = []
for _epoch in range(4):
    model.train()
    for rows in torch.randperm(480).split(32):
        opt.zero_grad()
        loss = loss_fn(model(X_train[rows]), y_train[rows])  # <- here
        loss.backward()
        opt.step()
    model.eval()
    with torch.no_grad():
        history.append(loss_fn(model(X_val), y_val).item() ** 0.5)

# %%
print(history)
