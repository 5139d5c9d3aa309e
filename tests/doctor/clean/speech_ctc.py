"""Frames of speech against shorter texts: a loss over alignments."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
model = nn.GRU(20, 32, batch_first=True, bidirectional=True)
head = nn.Linear(64, 12)
optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()], lr=1e-3)
criterion = nn.CTCLoss(blank=0, zero_infinity=True)
for _ in range(10):
    frames, lengths = torch.randn(6, 40, 20), torch.randint(25, 41, (6,))
    texts, text_lengths = torch.randint(1, 12, (6, 10)), torch.randint(3, 11, (6,))
    scores = torch.log_softmax(head(model(frames)[0]), dim=-1).transpose(0, 1)
    loss = criterion(scores, texts, lengths, text_lengths)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
