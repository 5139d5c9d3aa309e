"""A convolutional network with batch norm on images of 32 x 32, evaluated after every epoch."""

from __future__ import annotations

import torch
from clock import Clock
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
images, labels = torch.randn(1280, 3, 32, 32), torch.arange(1280) % 10
training = DataLoader(TensorDataset(images[:1024], labels[:1024]), batch_size=32, shuffle=True)
held_out = DataLoader(TensorDataset(images[1024:], labels[1024:]), batch_size=64)


def stage(channels: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.MaxPool2d(2),
    )


model = nn.Sequential(
    stage(3, 32), stage(32, 64), stage(64, 128), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
clock = Clock()
for _epoch in range(2):
    model.train()
    for x, y in training:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        clock.tick()
    model.eval()
    with torch.no_grad():
        print(sum(int((model(x).argmax(1) == y).sum()) for x, y in held_out) / 256)
clock.write()
