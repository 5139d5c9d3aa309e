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


def windows(series, length):
    x, y = [], []
    for start in range(len(series) - length):
        x.append(series[start : start + length + 1])  # <- here
        y.append(series[start + length])
    return torch.stack(x).unsqueeze(-1), torch.stack(y).unsqueeze(-1)


torch.manual_seed(0)
series = torch.cumsum(torch.randn(500), 0)
series = (series - series.mean()) / series.std()
x, y = windows(series, 12)
train = DataLoader(TensorDataset(x[:400], y[:400]), batch_size=32, shuffle=True)  # <- here
model = Forecaster()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(2):
    for inputs, targets in train:
        loss = nn.functional.mse_loss(model(inputs), targets)  # <- here
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
with torch.no_grad():
    print("test", nn.functional.mse_loss(model(x[400:]), y[400:]).item())
