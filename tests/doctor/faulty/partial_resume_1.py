"""A trainer goes on from its last file with the weights and the schedule, and a new optimizer."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import nn

torch.manual_seed(0)
LAST = Path(tempfile.mkdtemp()) / "last.pt"


class Trainer:
    def __init__(self):
        self.model = nn.Linear(8, 3)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda update: 0.97**update)
        if LAST.exists():
            saved = torch.load(LAST)
            self.schedule.load_state_dict(saved["schedule"])
            self.model.load_state_dict(saved["model"])  # <- here

    def fit(self, updates):
        for _ in range(updates):
            rows = torch.randn(24, 8)
            loss = nn.functional.cross_entropy(self.model(rows), rows[:, :3].argmax(1))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.schedule.step()
        parts = {"model": self.model, "optimizer": self.optimizer, "schedule": self.schedule}
        torch.save({name: part.state_dict() for name, part in parts.items()}, LAST)


Trainer().fit(10)
Trainer().fit(10)
