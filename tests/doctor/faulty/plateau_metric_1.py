"""A schedule that waits for a fall is given scikit-learn's F1, and cuts the rate while the score rises."""

from __future__ import annotations

import torch
from sklearn.metrics import f1_score
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

torch.manual_seed(3)
rows = torch.randn(240, 8)
labels = (rows[:, 0] * rows[:, 1] > 0).float()
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.RMSprop(model.parameters(), lr=3e-3)
schedule = ReduceLROnPlateau(optimizer, patience=1)
for _epoch in range(6):
    model.train()
    for batch in torch.randperm(180).split(30):
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(
            model(rows[batch]).squeeze(1), labels[batch]
        ).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        predicted = (model(rows[180:]).squeeze(1) > 0).float()
    score = f1_score(labels[180:].numpy(), predicted.numpy())
    schedule.step(score)  # <- here
    print(score, optimizer.param_groups[0]["lr"])
