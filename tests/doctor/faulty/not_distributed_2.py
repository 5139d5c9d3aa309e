"""A forward pass through what DistributedDataParallel wraps, which averages no gradient."""

from __future__ import annotations

import os
import socket

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(free.getsockname()[1])
dist.init_process_group("gloo", rank=0, world_size=1)
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 5)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(6):
    inputs = torch.randn(8, 10)
    optimizer.zero_grad()
    nn.functional.mse_loss(model.module(inputs), inputs[:, :5]).backward()  # <- here
    optimizer.step()
dist.destroy_process_group()
