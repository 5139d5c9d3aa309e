"""A script that only tests a saved model."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def build():
    return nn.Sequential(
        nn.Conv1d(1, 8, 3), nn.BatchNorm1d(8), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(80, 3)
    )


torch.manual_seed(0)
saved = build()
with torch.no_grad():
    for _ in range(20):
        saved(torch.randn(32, 1, 12))
torch.save(saved.state_dict(), "model.pt")

model = build()
model.load_state_dict(torch.load("model.pt"))
test = DataLoader(TensorDataset(torch.randn(90, 1, 12), torch.randint(0, 3, (90,))), batch_size=30)
correct = 0
with torch.no_grad():
    for x, y in test:
        correct += (model(x).argmax(dim=1) == y).sum().item()  # <- here
print("accuracy", correct / 90)
