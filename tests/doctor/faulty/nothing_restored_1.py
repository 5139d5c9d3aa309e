"""A checkpoint of a wrapped model, whose names all begin with module., loaded without being strict."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
pretrained = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
torch.save({f"module.{name}": value for name, value in pretrained.state_dict().items()}, "pretrained.pt")
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
model.load_state_dict(torch.load("pretrained.pt"), strict=False)  # <- here
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(6):
    inputs = torch.randn(16, 6)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs), torch.arange(16) % 3).backward()
    optimizer.step()
