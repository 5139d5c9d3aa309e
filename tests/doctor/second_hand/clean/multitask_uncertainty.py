"""Three tasks of different kind, weighed by learned uncertainties; some labels are missing and do not count."""

from __future__ import annotations

import torch
from torch import nn


class MultiTask(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(20, 64), nn.LayerNorm(64), nn.ReLU())
        self.heads = nn.ModuleDict(
            {"age": nn.Linear(64, 1), "kind": nn.Linear(64, 3), "tags": nn.Linear(64, 5)}
        )
        self.log_vars = nn.ParameterDict({name: nn.Parameter(torch.zeros(())) for name in self.heads})

    def forward(self, x):
        h = self.encoder(x)
        return {name: head(h) for name, head in self.heads.items()}


def task_losses(out, age, kind, tags):
    return {
        "age": nn.functional.smooth_l1_loss(out["age"].squeeze(-1), age),
        "kind": nn.functional.cross_entropy(out["kind"], kind, ignore_index=-1),
        "tags": nn.functional.binary_cross_entropy_with_logits(out["tags"], tags),
    }


torch.manual_seed(44)
w = torch.randn(20, 5) / 4
model = MultiTask()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for step in range(30):
    x = torch.randn(64, 20)
    age = x[:, :3].mean(1)
    kind = x[:, 3:6].argmax(1)
    kind[torch.rand(64) < 0.2] = -1
    tags = (x @ w > 0).float()
    losses = task_losses(model(x), age, kind, tags)
    loss = sum(torch.exp(-model.log_vars[k]) * v + model.log_vars[k] for k, v in losses.items())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, {k: round(v.item(), 3) for k, v in losses.items()})
