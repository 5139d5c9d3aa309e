"""Two loaders whose rows belong together: unlabelled ones beside labelled ones, and states that are made for each batch."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
style = torch.randint(0, 4, (128,))
notes = torch.randn(128, 7, 3) + style[:, None, None]
labelled = DataLoader(TensorDataset(notes[:64], style[:64]), 16, shuffle=True)
unlabelled = DataLoader(notes[64:], 16, shuffle=True)
rnn, head = nn.LSTM(3, 12, batch_first=True), nn.Linear(12, 4)
reference = copy.deepcopy(head).requires_grad_(False)
optimizer = torch.optim.Adam([*rnn.parameters(), *head.parameters()], lr=3e-3)
for _epoch in range(3):
    for (x, y), other in zip(labelled, unlabelled, strict=True):
        state = None
        for half in x.split(4, dim=1):
            out, state = rnn(half, state)
        loss = nn.functional.cross_entropy(head(out.mean(1)), y)
        once, again = rnn(other)[0].mean(1), rnn(other + 0.01 * torch.randn_like(other))[0].mean(1)
        loss = loss + nn.functional.mse_loss(once, again)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        print((reference(rnn(notes)[0].mean(1)).argmax(1) == style).float().mean().item())
