"""A frozen backbone in evaluation mode, and a head that is trained with label smoothing."""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class FrozenBackbone(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
        )
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(16 * 16, classes)
        self.backbone.requires_grad_(False)

    def train(self, mode=True):
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, x):
        with torch.no_grad():
            features = self.backbone(x)
        return self.head(self.dropout(features))


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", default=3, type=int)
    parser.add_argument("--smoothing", default=0.1, type=float)
    return parser.parse_args()


def main(args):
    torch.manual_seed(0)
    labels = torch.randint(0, 5, (300,))
    images = torch.randn(5, 3, 8, 8)[labels] + torch.randn(300, 3, 8, 8)
    train = DataLoader(TensorDataset(images[:240], labels[:240]), batch_size=40, shuffle=True)
    test = DataLoader(TensorDataset(images[240:], labels[240:]), batch_size=60)
    model = FrozenBackbone(5)
    criterion = nn.CrossEntropyLoss(label_smoothing=args.smoothing)
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(args.epochs):
        model.train()
        for x, y in train:
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
        model.eval()
        with torch.inference_mode():
            hits = sum((model(x).argmax(-1) == y).sum().item() for x, y in test)
        print(epoch, hits / 60)


if __name__ == "__main__":
    main(parse())
