"""A residual network of blocks in a plain list, which parameters() does not see."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import nn


@dataclass
class Config:
    width: int = 32
    depth: int = 3
    lr: float = 1e-3
    batch: int = 48
    steps: int = 20
    seed: int = field(default=23)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class ResidualMLP(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.stem = nn.Linear(9, cfg.width)
        self.blocks = [Block(cfg.width) for _ in range(cfg.depth)]
        self.head = nn.Linear(cfg.width, 1)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x).squeeze(-1)


cfg = Config()
torch.manual_seed(cfg.seed)
net = ResidualMLP(cfg)
optimizer = torch.optim.Adam(net.parameters(), lr=cfg.lr)  # <- here
for _step in range(cfg.steps):
    x = torch.randn(cfg.batch, 9)
    y = torch.sin(x[:, 0]) + 0.5 * x[:, 1] * x[:, 2]
    loss = nn.functional.mse_loss(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("loss", loss.item())
