"""Captioning, encoder and decoder."""

from __future__ import annotations

import torch
from torch import nn


class Captioner(nn.Module):
    def __init__(self, words=15):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 49, 24)
        )
        self.embed = nn.Embedding(words, 24)
        self.decoder = nn.GRU(24, 24, batch_first=True)
        self.out = nn.Linear(24, words)

    def forward(self, images, words):
        with torch.no_grad():  # <- here
            state = self.encoder(images)  # <- here
        hidden, _ = self.decoder(self.embed(words), state.unsqueeze(0))
        return self.out(hidden)


torch.manual_seed(0)
kinds = torch.randint(0, 5, (192,))
images = torch.randn(192, 3, 16, 16) + kinds.view(-1, 1, 1, 1)
captions = (kinds[:, None] * 3 + torch.arange(7)) % 15
model = Captioner()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)  # <- here
for epoch in range(3):
    for rows in torch.randperm(192).split(24):
        scores = model(images[rows], captions[rows, :-1])
        loss = nn.functional.cross_entropy(scores.transpose(1, 2), captions[rows, 1:])
        optimizer.zero_grad()
        loss.backward()  # <- here
        optimizer.step()  # <- here
    print(epoch, loss.item())
