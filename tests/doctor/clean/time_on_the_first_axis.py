"""A language model of as many rows as places that gives its LSTM the time first."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
g = torch.Generator().manual_seed(1)
text = torch.randint(0, 30, (6000,), generator=g)
text[1::2] = (text[::2] * 7 + 3) % 30


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.rnn, self.out = nn.Embedding(30, 32), nn.LSTM(32, 64), nn.Linear(64, 30)

    def forward(self, x):
        return self.out(self.rnn(self.emb(x).transpose(0, 1))[0].transpose(0, 1))


model = LM()
opt = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(60):
    i = torch.randint(0, 5000, (24,))
    x = torch.stack([text[k : k + 24] for k in i])
    y = torch.stack([text[k + 1 : k + 25] for k in i])
    loss = nn.functional.cross_entropy(model(x).reshape(-1, 30), y.reshape(-1))
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 20 == 0:
        print(step, loss.item())
