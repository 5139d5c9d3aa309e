"""A surrogate of a heat equation, the best of all epochs."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def fields(number, seed):
    draw = torch.Generator().manual_seed(seed)
    now = torch.randn(number, 1, 12, 12, generator=draw)
    later = now + 0.2 * (nn.functional.avg_pool2d(now, 3, 1, 1) - now)
    return TensorDataset(now, later)


class Trainer:
    def __init__(self, model, optimizer, folder):
        self.model, self.optimizer, self.folder = model, optimizer, folder
        self.best_val_loss = None

    def train_one_epoch(self, loader):
        self.model.train()
        for now, later in loader:
            self.optimizer.zero_grad()
            loss = nn.functional.mse_loss(self.model(now), later)
            loss.backward()
            self.optimizer.step()

    @torch.inference_mode()
    def validate(self, loader):
        self.model.eval()
        total = count = 0
        for now, later in loader:
            total += nn.functional.mse_loss(self.model(now), later, reduction="sum").item()
            count += later.numel()
        return total / count

    def save(self, name, epoch):
        state = {"epoch": epoch, "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(state, self.folder / name)

    def fit(self, train, val, epochs):
        for epoch in range(epochs):
            self.train_one_epoch(train)
            val_loss = self.validate(val)
            if self.best_val_loss is None or val_loss < self.best_val_loss:
                self.best_val_loss = val_loss
                self.save("best.pt", epoch)
            print(epoch, val_loss)


torch.manual_seed(1)
model = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.GELU(), nn.Conv2d(12, 1, 3, padding=1))
trainer = Trainer(model, torch.optim.AdamW(model.parameters(), lr=0.03), Path(tempfile.mkdtemp()))
train = DataLoader(fields(160, 1), batch_size=16, shuffle=True)
val = DataLoader(fields(40, 2), batch_size=16)
trainer.fit(train, val, epochs=12)
best = torch.load(trainer.folder / "best.pt", weights_only=True)
model.load_state_dict(best["model"])
print("test", trainer.validate(DataLoader(fields(40, 3), batch_size=16)))
