"""A stateful LSTM: its state goes from window to window, detached; the series was standardised by its training part."""

from __future__ import annotations

import torch
from torch import nn


class Seq(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.rnn = nn.LSTM(2, hidden, num_layers=2, dropout=0.1, batch_first=True)
        self.linear = nn.Linear(hidden, 2)

    def forward(self, x, state=None):
        y, state = self.rnn(x, state)
        return x + self.linear(y), state


torch.manual_seed(9)
time = torch.arange(600).float()
raw = torch.stack([50 + 10 * torch.sin(time / 9), 3 * torch.cos(time / 5) + time / 300], dim=-1)
raw = raw + 0.1 * torch.randn(6, 600, 2)
mean, std = raw[:, :450].mean((0, 1)), raw[:, :450].std((0, 1))
series = (raw - mean) / std
train, held_out = series[:, :450], series[:, 450:]

model = Seq()
criterion = nn.MSELoss()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for epoch in range(2):
    model.train()
    state, losses = None, []
    for start in range(0, 449 - 29, 30):
        window = train[:, start : start + 31]
        prediction, state = model(window[:, :-1], state)
        state = tuple(s.detach() for s in state)
        loss = criterion(prediction, window[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        prediction, _ = model(held_out[:, :-1])
        print(epoch, sum(losses) / len(losses), criterion(prediction, held_out[:, 1:]).item())
