"""The rows of the file begin with the start token, and the collate function puts one before them."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(1)
START = 1
rows = [torch.cat([torch.tensor([START]), torch.randint(2, 90, (11,))]) for _ in range(40)]


def collate(batch):
    return torch.stack([torch.cat([torch.tensor([START]), row]) for row in batch])


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.rnn, self.out = (
            nn.Embedding(90, 12),
            nn.GRU(12, 12, batch_first=True),
            nn.Linear(12, 90),
        )

    def forward(self, tokens):
        return self.out(self.rnn(self.embed(tokens))[0])


net = Model()
opt = torch.optim.Adam(net.parameters(), lr=3e-3)
for tokens in DataLoader(rows, batch_size=8, shuffle=True, collate_fn=collate):
    scores = net(tokens[:, :-1])  # <- here
    loss = nn.functional.cross_entropy(scores.transpose(1, 2), tokens[:, 1:])
    opt.zero_grad()
    loss.backward()
    opt.step()
