"""Two ranks (made to look so), and a loader that does not know."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.get_world_size = lambda group=None: 2
torch.manual_seed(0)
dataset = TensorDataset(torch.randn(32, 6), torch.randn(32, 1))
loader = DataLoader(dataset, batch_size=8, shuffle=True)  # <- here
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
dist.destroy_process_group()
