"""Sensor windows with a state that is kept."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
kind = torch.randint(0, 3, (320,))
windows = torch.randn(320, 10, 4) + 0.4 * kind[:, None, None]
loader = DataLoader(TensorDataset(windows, kind), batch_size=32, shuffle=True, drop_last=True)
rnn, head = nn.LSTM(4, 16, batch_first=True), nn.Linear(16, 3)
optimizer = torch.optim.Adam([*rnn.parameters(), *head.parameters()], lr=3e-3)
state = None
for epoch in range(3):
    for x, y in loader:
        out, state = rnn(x, state)  # <- here
        state = tuple(each.detach() for each in state)
        loss = nn.functional.cross_entropy(head(out[:, -1]), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
