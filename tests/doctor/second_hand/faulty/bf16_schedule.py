"""A classifier under bfloat16 autocast that steps its schedule before its optimizer."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR


def build():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False),
        nn.GroupNorm(4, 16),
        nn.SiLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1, bias=False),
        nn.GroupNorm(4, 32),
        nn.SiLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 6),
    )


def batches(n, size, prototypes):
    for _ in range(n):
        y = torch.randint(0, 6, (size,))
        yield prototypes[y] + 0.7 * torch.randn(size, 3, 12, 12), y


def main():
    torch.manual_seed(21)
    steps = 24
    prototypes = torch.randn(6, 3, 12, 12)
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True)
    scheduler = OneCycleLR(optimizer, max_lr=0.1, total_steps=steps + 1)
    for step, (x, y) in enumerate(batches(steps, 32, prototypes)):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        scheduler.step()  # <- here
        optimizer.step()
        if step % 8 == 0:
            print(f"step {step} loss {loss.item():.3f} lr {scheduler.get_last_lr()[0]:.4f}")


main()
