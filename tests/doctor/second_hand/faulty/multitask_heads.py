"""Two tasks on one trunk: the second head is made after the optimizer, which does not hold it."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Trunk(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 24), nn.ReLU())
        self.heads = nn.ModuleDict()

    def add_task(self, name, outputs):
        self.heads[name] = nn.Linear(24, outputs)
        return self

    def forward(self, x):
        shared = self.body(x)
        return {name: head(shared) for name, head in self.heads.items()}


torch.manual_seed(12)
x = torch.randn(384, 12)
kind = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
size = (x[:, 2:5].sum(1, keepdim=True) + 0.1 * torch.randn(384, 1)) / 2
loader = DataLoader(TensorDataset(x, kind, size), batch_size=32, shuffle=True)

model = Trunk().add_task("kind", 3)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)  # <- here
model.add_task("size", 1)
losses = {"kind": nn.CrossEntropyLoss(), "size": nn.SmoothL1Loss()}
for epoch in range(2):
    for inputs, kinds, sizes in loader:
        outputs = model(inputs)
        loss = losses["kind"](outputs["kind"], kinds) + 0.5 * losses["size"](outputs["size"], sizes)
        model.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
