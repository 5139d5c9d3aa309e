"""Recurrent language model."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
TOKENS = 28


class CharRnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(TOKENS, 16)
        self.rnn = nn.LSTM(16, 32, batch_first=True)
        self.out = nn.Linear(32, TOKENS)

    def forward(self, x, state=None):
        hidden, state = self.rnn(self.embed(x), state)
        return self.out(hidden), state


text = torch.randint(0, TOKENS, (16, 241))
model = CharRnn()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
state = None
for start in range(0, 240, 12):
    source, target = text[:, start : start + 12], text[:, start + 1 : start + 13]
    if state is not None:
        state = tuple(part.detach() for part in state)
    scores, state = model(source, state)
    loss = criterion(scores.flatten(0, 1), target.flatten())
    optimizer.zero_grad()
    nn.utils.clip_grad_norm_(model.parameters(), 0.25)  # <- here
    loss.backward()
    optimizer.step()
print(loss.item())
