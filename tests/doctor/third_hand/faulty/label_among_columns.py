"""Tabular classifier."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

draws = np.random.default_rng(0)
table = {
    "age": draws.normal(40, 10, 400),
    "income": draws.normal(50, 15, 400),
    "visits": draws.poisson(3, 400).astype(float),
}
table["churned"] = ((table["age"] - 40) / 10 + draws.normal(0, 1, 400) > 0).astype(float)
columns = list(table)
matrix = np.stack([table[name] for name in columns], 1)
features = matrix[:, : len(columns)]  # <- here
labels = matrix[:, columns.index("churned")]
scale = features[:320]
features = (features - scale.mean(0)) / scale.std(0)
x, y = torch.tensor(features, dtype=torch.float32), torch.tensor(labels, dtype=torch.long)
loader = DataLoader(TensorDataset(x[:320], y[:320]), batch_size=40, shuffle=True)

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(len(columns), 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for epoch in range(4):
    model.train()
    for rows, targets in loader:
        loss = nn.functional.cross_entropy(model(rows), targets)  # <- here
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        print(epoch, (model(x[320:]).argmax(1) == y[320:]).float().mean().item())
