"""Labels without a class 0 for a reason: it is ignored, it is the padding of tags, it is rare, or some classes have no rows at all."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
inputs = torch.randn(300, 11)


def train(labels, classes, **options):
    model = nn.Sequential(nn.Linear(11, 16), nn.ReLU(), nn.Linear(16, classes))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    criterion = nn.CrossEntropyLoss(**options)
    for _ in range(2):
        for rows in torch.randperm(300).split(30):
            optimizer.zero_grad()
            criterion(model(inputs[rows]), labels[rows]).backward()
            optimizer.step()


train(torch.randint(0, 6, (300,)), 6, ignore_index=0)
train(torch.randint(1, 4, (300,)), 8)
few = torch.randint(1, 6, (300,))
few[torch.randperm(300)[:12]] = 0
train(few, 6)

words, tags = torch.randint(1, 30, (120, 7)), torch.randint(1, 5, (120, 7))
tagger = nn.Sequential(nn.Embedding(30, 8, padding_idx=0), nn.Linear(8, 5))
optimizer = torch.optim.Adam(tagger.parameters(), lr=3e-3)
for rows in torch.arange(120).split(20):
    optimizer.zero_grad()
    nn.functional.cross_entropy(tagger(words[rows]).transpose(1, 2), tags[rows]).backward()
    optimizer.step()
