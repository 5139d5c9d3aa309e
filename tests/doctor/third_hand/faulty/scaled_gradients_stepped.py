"""Image classifier, mixed precision."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
y = torch.randint(0, 4, (256,))
x = torch.randn(256, 3, 12, 12) + 0.2 * y.view(-1, 1, 1, 1)
loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
for epoch in range(3):
    for images, labels in loader:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()  # <- here
        optimizer.step()  # <- here
    print(epoch, loss.item())
