"""A forecasting LSTM with plain SGD at a rate that makes the loss grow without end."""

from __future__ import annotations

import torch
from torch import nn


class Forecaster(nn.Module):
    def __init__(self, hidden=24):
        super().__init__()
        self.lstm = nn.LSTM(1, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 1)

    def forward(self, x):
        out, _ = self.lstm(x)
        return self.head(out)


def sliding_windows(length=800, window=20):
    time = torch.arange(length + window + 1) * 0.15
    values = torch.sin(time) + 0.3 * torch.sin(3.1 * time) + 0.05 * torch.randn(len(time))
    values = (values - values.mean()) / values.std()
    x = values.unfold(0, window, 1)[:length]
    y = values[1:].unfold(0, window, 1)[:length]
    return x.unsqueeze(-1), y.unsqueeze(-1)


def fit(model, x, y, lr=1.2, epochs=2, batch_size=32):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)  # <- here
    criterion = nn.MSELoss()
    for epoch in range(epochs):
        total = 0.0
        for rows in torch.randperm(len(x)).split(batch_size):
            loss = criterion(model(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(rows)
        print(f"epoch {epoch}: mse {total / len(x):.4g}")


torch.manual_seed(4)
fit(Forecaster(), *sliding_windows())
