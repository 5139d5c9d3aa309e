"""Meta-learning: an inner update by torch.func, an outer one by an optimizer."""

from __future__ import annotations

import torch
from torch import nn
from torch.func import functional_call

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 1))
outer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(10):
    outer.zero_grad()
    for _ in range(3):
        phase, height = torch.rand(2).tolist()
        x = torch.randn(20, 1)
        y = (height + 0.5) * torch.sin(x + phase)
        weights = dict(model.named_parameters())
        inner = nn.functional.mse_loss(functional_call(model, weights, (x[:10],)), y[:10])
        gradients = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
        adapted = {
            name: each - 0.01 * gradient
            for (name, each), gradient in zip(weights.items(), gradients, strict=True)
        }
        (nn.functional.mse_loss(functional_call(model, adapted, (x[10:],)), y[10:]) / 3).backward()
    outer.step()
