"""A reader of letters by connectionist temporal classification: the last output is the blank, and the letter z has its number."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(2)
reader = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 27))
optimizer = torch.optim.Adam(reader.parameters(), lr=0.01)
shapes = torch.randn(27, 8)
lengths, frames = torch.full((10,), 4), torch.full((10,), 12)
for _ in range(12):
    texts = torch.randint(1, 27, (10, 4))
    pictures = shapes[texts.repeat_interleave(3, 1)] + 0.1 * torch.randn(10, 12, 8)
    paths = reader(pictures).log_softmax(-1).transpose(0, 1)
    loss = nn.functional.ctc_loss(paths, texts, frames, lengths, blank=26)  # <- here
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
