"""Transfer learning, configuration."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class Config:
    frozen_stages: int = 2
    classes: int = 5
    epochs: int = 3


class Vgg(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.stages = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
            for a, b in ((3, 8), (8, 8), (8, 16))
        )
        self.head = nn.Linear(16 * 2 * 2, config.classes)

    def freeze_stages(self):
        for stage in self.stages[: self.config.frozen_stages]:
            for parameter in stage.parameters():
                parameter.requires_grad = False

    def train(self, mode=True):
        super().train(mode)
        self.freeze_stages()  # <- here
        return self

    def forward(self, x):
        for stage in self.stages:
            x = stage(x)
        return self.head(x.flatten(1))


torch.manual_seed(3)
config = Config()
y = torch.randint(0, config.classes, (320,))
x = torch.randn(320, 3, 16, 16) + 0.2 * y.view(-1, 1, 1, 1)
training = DataLoader(TensorDataset(x[:256], y[:256]), 32, shuffle=True)
validation = DataLoader(TensorDataset(x[256:], y[256:]), 32)
model = Vgg(config)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)  # <- here
for epoch in range(config.epochs):
    for images, labels in training:
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # <- here
    model.eval()
    with torch.no_grad():
        right = sum((model(a).argmax(1) == b).sum().item() for a, b in validation)
    model.train()
    print(epoch, right / 64)
