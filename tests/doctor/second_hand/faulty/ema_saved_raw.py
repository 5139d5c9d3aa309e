"""The moving average is what is validated, and the raw weights are what is written."""

from __future__ import annotations

import copy
import tempfile

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class ModelEma:
    def __init__(self, model, decay=0.98):
        self.module = copy.deepcopy(model).eval()
        self.decay = decay
        for p in self.module.parameters():
            p.requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        for e, m in zip(self.module.state_dict().values(), model.state_dict().values(), strict=True):
            e.copy_(self.decay * e + (1.0 - self.decay) * m)


@torch.no_grad()
def validate(model, loader):
    model.eval()
    correct = sum((model(x).argmax(1) == y).sum().item() for x, y in loader)
    return correct / len(loader.dataset)


torch.manual_seed(0)
x = torch.randn(480, 12)
y = (x[:, :3].sum(1) > 0).long()
train_loader = DataLoader(TensorDataset(x[:384], y[:384]), batch_size=32, shuffle=True)
val_loader = DataLoader(TensorDataset(x[384:], y[384:]), batch_size=48)
model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 2))
ema = ModelEma(model)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
best, folder = 0.0, tempfile.mkdtemp()
for epoch in range(3):
    model.train()
    for xb, yb in train_loader:
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(model(xb), yb).backward()
        optimizer.step()
        ema.update(model)
    score = validate(ema.module, val_loader)
    if score > best:
        best = score
        torch.save(model.state_dict(), f"{folder}/best.pt")  # <- here
    print(epoch, score)
