"""Image classifier, argparse."""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--batch-size", type=int, default=32)
args = parser.parse_args()

torch.manual_seed(0)
labels = torch.randint(0, 5, (320,))
images = torch.randn(320, 1, 10, 10) + 0.2 * labels.view(-1, 1, 1, 1)
train_set, val_set = random_split(TensorDataset(images, labels), [256, 64])
train_loader = DataLoader(train_set, args.batch_size, shuffle=True)
val_loader = DataLoader(train_set, args.batch_size)  # <- here
model = nn.Sequential(nn.Flatten(), nn.Linear(100, 48), nn.ReLU(), nn.Linear(48, 5))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(args.epochs):
    model.train()
    for x, y in train_loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    model.eval()
    right = rows = 0
    with torch.no_grad():
        for x, y in val_loader:  # <- here
            right += (model(x).argmax(1) == y).sum().item()  # <- here
            rows += len(y)
    print(epoch, right / rows)
