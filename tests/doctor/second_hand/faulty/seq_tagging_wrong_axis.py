"""A tagger of as many positions as tags: its scores are compared on the axis of the positions."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(13)
TAGS, LENGTH, VOCAB = 8, 8, 40


class ConvTagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, 24)
        self.conv = nn.Conv1d(24, 32, 3, padding=1)
        self.out = nn.Linear(32, TAGS)

    def forward(self, ids):
        x = torch.relu(self.conv(self.embed(ids).transpose(1, 2)))
        return self.out(x.transpose(1, 2))


ids = torch.randint(0, VOCAB, (320, LENGTH))
tags = ids % TAGS
train, held = (ids[:256], tags[:256]), (ids[256:], tags[256:])
model = ConvTagger()
opt = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(3):
    model.train()
    for rows in torch.randperm(256).split(32):
        logits = model(train[0][rows])
        loss = nn.functional.cross_entropy(logits.reshape(-1, TAGS), train[1][rows].reshape(-1))
        opt.zero_grad()
        loss.backward()
        opt.step()
    model.eval()
    with torch.no_grad():
        predicted = model(held[0]).argmax(dim=1)
        print(epoch, "accuracy", (predicted == held[1]).float().mean().item())  # <- here
