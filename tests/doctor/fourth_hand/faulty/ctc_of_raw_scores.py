"""Text lines read by CTC."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
lines = torch.randn(96, 1, 8, 40)
texts, lengths = torch.randint(1, 12, (96, 6)), torch.randint(2, 7, (96,))


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.look = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d((1, 20)))
        self.read = nn.GRU(12, 24, bidirectional=True, batch_first=True)
        self.out = nn.Linear(48, 12)

    def forward(self, x):
        return self.out(self.read(self.look(x).squeeze(2).transpose(1, 2))[0])


model, ctc = Reader(), nn.CTCLoss(zero_infinity=True)
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
for epoch in range(4):
    for rows in torch.randperm(96).split(16):
        scores = model(lines[rows]).transpose(0, 1)
        loss = ctc(scores, texts[rows], torch.full((16,), 20), lengths[rows])  # <- here
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
