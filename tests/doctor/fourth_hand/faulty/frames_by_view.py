"""Gesture recogniser, recurrent over frames."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Gestures(nn.Module):
    def __init__(self):
        super().__init__()
        self.frame = nn.Sequential(nn.Linear(10, 20), nn.ReLU())
        self.memory = nn.GRU(20, 20)
        self.head = nn.Linear(20, 4)

    def forward(self, clips):
        batch, frames, _ = clips.shape
        features = self.frame(clips)
        features = features.view(frames, batch, -1)  # <- here
        _, last = self.memory(features)
        return self.head(last[-1])


torch.manual_seed(0)
labels = torch.randint(0, 4, (256,))
clips = torch.randn(256, 9, 10) + labels[:, None, None] * 0.4
model = Gestures()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for epoch in range(3):
    for x, y in DataLoader(TensorDataset(clips, labels), batch_size=32, shuffle=True):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
