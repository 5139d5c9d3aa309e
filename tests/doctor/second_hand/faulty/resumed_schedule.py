"""A resumed run that restores weights and moments, and begins its cosine schedule anew."""

from __future__ import annotations

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn


class Experiment:
    def __init__(self, path, total_updates=32):
        self.path = path
        self.model = nn.Sequential(nn.Linear(8, 24), nn.GELU(), nn.Linear(24, 4))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=total_updates)
        self.update = 0
        if os.path.exists(path):
            self.load()

    def load(self):
        state = torch.load(self.path, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])  # <- here
        self.update = state["update"]

    def save(self):
        torch.save(
            {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "scheduler": self.scheduler.state_dict(),
                "update": self.update,
            },
            self.path,
        )

    def run(self, until):
        while self.update < until:
            x = torch.randn(32, 8)
            y = x[:, :4].argmax(1)
            loss = F.cross_entropy(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()
            self.update += 1
        self.save()
        print(self.update, loss.item(), self.optimizer.param_groups[0]["lr"])


torch.manual_seed(0)
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "last.ckpt")
    Experiment(path).run(until=16)
    Experiment(path).run(until=32)
