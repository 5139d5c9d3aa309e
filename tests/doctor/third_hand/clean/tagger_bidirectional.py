"""Sequence tagger, LSTM."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.lstm = nn.LSTM(16, 24, batch_first=True, bidirectional=True)
        self.out = nn.Linear(48, 5)

    def forward(self, tokens):
        return self.out(self.lstm(self.embed(tokens))[0])


torch.manual_seed(0)
tokens = torch.randint(0, 50, (256, 12))
tags = (tokens + tokens.roll(-1, 1)) % 5
model = Tagger()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(2):
    for x, y in DataLoader(TensorDataset(tokens, tags), 32, shuffle=True):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x).transpose(1, 2), y)
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
