"""Gradient accumulation as the AMP examples write it, with a scaler and a schedule."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
loader = DataLoader(TensorDataset(torch.randn(64, 8), torch.arange(64) % 3), batch_size=8, shuffle=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
iters_to_accumulate = 4
epochs = 3
updates = epochs * len(loader) // iters_to_accumulate
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=updates)
scaler = torch.amp.GradScaler("cpu")
for _epoch in range(epochs):
    for i, (input, target) in enumerate(loader):
        output = model(input)
        loss = nn.functional.cross_entropy(output, target)
        loss = loss / iters_to_accumulate
        scaler.scale(loss).backward()
        if (i + 1) % iters_to_accumulate == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            scheduler.step()
