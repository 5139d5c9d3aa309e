"""Stars of one to five for texts, by the likelihood of their words."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
stars = torch.randint(1, 6, (400,))
words = torch.randint(0, 40, (400, 12)) + 8 * stars[:, None]
model = nn.Sequential(nn.EmbeddingBag(90, 24), nn.Linear(24, 6), nn.LogSoftmax(dim=1))
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
criterion = nn.NLLLoss()
for epoch in range(2):
    for rows in torch.randperm(400).split(40):
        optimizer.zero_grad()
        loss = criterion(model(words[rows]), stars[rows])  # <- here
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
