"""One long signal read in order, its state carried on; lines read by CTC from log-probabilities."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
signal = torch.randn(8, 161, 2).cumsum(1) / 5
rnn, head = nn.LSTM(2, 16, batch_first=True), nn.Linear(16, 2)
optimizer = torch.optim.Adam([*rnn.parameters(), *head.parameters()], lr=3e-3)
for epoch in range(2):
    state = None
    for start in range(0, 160, 20):
        out, state = rnn(signal[:, start : start + 20], state)
        state = tuple(each.detach() for each in state)
        loss = nn.functional.mse_loss(head(out), signal[:, start + 1 : start + 21])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
reader, ctc = nn.GRU(2, 12, batch_first=True), nn.CTCLoss()
last = nn.Linear(12, 6)
optimizer = torch.optim.Adam([*reader.parameters(), *last.parameters()], lr=3e-3)
for _step in range(12):
    scores = last(reader(signal[:, :30])[0]).log_softmax(-1).transpose(0, 1)
    loss = ctc(scores, torch.randint(1, 6, (8, 4)), torch.full((8,), 30), torch.full((8,), 4))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
