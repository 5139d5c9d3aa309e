"""A sparse dictionary of activations that revives what is dead."""

from __future__ import annotations

import torch
from torch import nn


class Dictionary(nn.Module):
    def __init__(self, width, features, k):
        super().__init__()
        self.k = k
        self.encode = nn.Linear(width, features)
        self.decode = nn.Linear(features, width)
        self.register_buffer("silent", torch.zeros(features))

    def forward(self, x):
        hidden = torch.relu(self.encode(x))
        top = hidden.topk(self.k, dim=1)
        sparse = torch.zeros_like(hidden).scatter(1, top.indices, top.values)
        with torch.no_grad():
            self.silent += 1
            self.silent[(sparse > 0).any(0)] = 0
        return self.decode(sparse), hidden

    def revive(self, hidden, residual):
        dead = self.silent > 2
        if not dead.any():
            return hidden.sum() * 0
        return (self.decode(hidden * dead) - residual.detach()).pow(2).mean()


class Trainer:
    def __init__(self, model, aux=0.03):
        self.model, self.aux = model, aux
        self.optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def losses(self, x):
        again, hidden = self.model(x)
        reconstruction_loss = (again - x).pow(2).mean()
        aux_loss = self.model.revive(hidden, x - again)
        loss = reconstruction_loss + self.aux * aux_loss  # <- here
        return reconstruction_loss, {"loss": loss.item(), "aux": aux_loss.item()}

    def run_batch(self, x):
        self.optimizer.zero_grad()
        loss, report = self.losses(x)
        loss.backward()  # <- here
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return report


torch.manual_seed(0)
atoms = torch.randn(48, 16)
used = (torch.rand(1280, 48) < 0.06).float() * torch.rand(1280, 48)
activations = used @ atoms / 2
trainer = Trainer(Dictionary(16, 64, 6))
for epoch in range(3):
    for x in activations[torch.randperm(len(activations))].split(64):
        report = trainer.run_batch(x)
    print(epoch, report)
