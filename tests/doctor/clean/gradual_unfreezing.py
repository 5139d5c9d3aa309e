"""A head first; then the backbone is unfrozen and given to the optimizer as a group of its own."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
backbone, head = nn.Sequential(nn.Linear(6, 12), nn.ReLU()), nn.Linear(12, 2)
backbone.requires_grad_(False)
model = nn.Sequential(backbone, head)
optimizer = torch.optim.AdamW(filter(lambda p: p.requires_grad, model.parameters()), lr=1e-2)
inputs, labels = torch.randn(32, 6), torch.arange(32) % 2
for step in range(8):
    if step == 4:
        backbone.requires_grad_(True)
        optimizer.add_param_group({"params": list(backbone.parameters()), "lr": 1e-4})
    optimizer.zero_grad(set_to_none=True)
    nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
