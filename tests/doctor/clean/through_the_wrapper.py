"""A wrapped model that trains through its wrapper, is evaluated without it, and gets a checkpoint without its new head."""

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
backbone = nn.Sequential(nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 5))
pretrained = {name: value for name, value in backbone.state_dict().items() if not name.startswith("2.")}
torch.save({**pretrained, "head.weight": torch.randn(3, 10)}, "pretrained.pt")
print(backbone.load_state_dict(torch.load("pretrained.pt"), strict=False).missing_keys)
model = DistributedDataParallel(backbone)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(6):
    inputs = torch.randn(8, 10)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(inputs), inputs[:, :5]).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    with torch.no_grad():
        model.module(inputs)
# how large they were, for the log
print(norm, torch.nn.utils.clip_grad_norm_(model.parameters(), float("inf")))
dist.destroy_process_group()
