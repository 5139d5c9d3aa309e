"""Predictions are collected in evaluation mode and scored by scikit-learn; Monte Carlo dropout gives their spread."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.metrics import accuracy_score, mean_squared_error
from torch import nn

torch.manual_seed(0)
inputs = torch.randn(160, 6)
labels = (inputs[:, 0] > 0).long()
model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Dropout(0.4), nn.Linear(24, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(3):
    model.train()
    for start in range(0, 96, 24):
        rows = slice(start, start + 24)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs[rows]), labels[rows]).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        batches = [model(inputs[start : start + 32]).numpy() for start in range(96, 160, 32)]
    print(accuracy_score(labels[96:].numpy(), np.concatenate(batches).argmax(1)))
    model.train()
    with torch.no_grad():
        samples = np.stack([model(inputs[96:]).softmax(1).numpy() for _ in range(8)])
    print(mean_squared_error(labels[96:].numpy(), samples.mean(0)[:, 1]), samples.std(0).mean())
