"""Language model with accumulation."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
WORDS, LENGTH, ACCUMULATE = 40, 16, 4
corpus = torch.randint(0, WORDS, (256, LENGTH + 1))


class Rnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, 24)
        self.gru = nn.GRU(24, 48, batch_first=True)
        self.out = nn.Linear(48, WORDS)

    def forward(self, x):
        return self.out(self.gru(self.embed(x))[0])


model = Rnn()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for epoch in range(2):
    for step, rows in enumerate(torch.randperm(256).split(8)):
        optimizer.zero_grad()  # <- here
        batch = corpus[rows]
        logits = model(batch[:, :-1])
        loss = F.cross_entropy(logits.transpose(1, 2), batch[:, 1:]) / ACCUMULATE
        loss.backward()
        if (step + 1) % ACCUMULATE == 0:
            optimizer.step()  # <- here
    print(epoch, loss.item() * ACCUMULATE)
