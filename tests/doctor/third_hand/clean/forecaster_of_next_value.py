"""Forecast of a series, GRU."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(1, 24, batch_first=True)
        self.out = nn.Linear(24, 1)

    def forward(self, windows):
        hidden, _ = self.rnn(windows)
        return self.out(hidden[:, -1])


torch.manual_seed(0)
series = torch.cumsum(torch.randn(500), 0)
series = (series - series[:400].mean()) / series[:400].std()
x = torch.stack([series[s : s + 12] for s in range(488)]).unsqueeze(-1)
y = torch.stack([series[s + 12] for s in range(488)]).unsqueeze(-1)
model = Forecaster()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(2):
    for inputs, targets in DataLoader(TensorDataset(x[:380], y[:380]), batch_size=32, shuffle=True):
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
with torch.no_grad():
    print("test", nn.functional.mse_loss(model(x[400:]), y[400:]).item())
