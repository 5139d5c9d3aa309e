"""A vision transformer whose head ends in a softmax, squeezed out of a class token, before cross-entropy."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class ViTConfig:
    image: int = 16
    patch: int = 4
    dim: int = 32
    depth: int = 2
    heads: int = 4
    classes: int = 5
    lr: float = 3e-4
    steps: int = 24
    batch: int = 32


class ViT(nn.Module):
    def __init__(self, cfg: ViTConfig):
        super().__init__()
        self.patchify = nn.Conv2d(3, cfg.dim, cfg.patch, stride=cfg.patch)
        self.cls = nn.Parameter(torch.zeros(1, 1, cfg.dim))
        self.pos = nn.Parameter(torch.randn(1, (cfg.image // cfg.patch) ** 2 + 1, cfg.dim) * 0.02)
        layer = nn.TransformerEncoderLayer(
            cfg.dim, cfg.heads, cfg.dim * 2, dropout=0.0, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, cfg.depth, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(cfg.dim)
        self.head = nn.Linear(cfg.dim, cfg.classes)

    def forward(self, x):
        x = self.patchify(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.size(0), -1, -1), x], dim=1) + self.pos
        x = self.norm(self.blocks(x))[:, :1]
        return torch.softmax(self.head(x), dim=-1).squeeze(1)


def main():
    cfg = ViTConfig()
    torch.manual_seed(3)
    model = ViT(cfg)
    prototypes = torch.randn(cfg.classes, 3, cfg.image, cfg.image)
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=0.0)
    criterion = nn.CrossEntropyLoss()
    for step in range(cfg.steps):
        labels = torch.randint(0, cfg.classes, (cfg.batch,))
        images = prototypes[labels] + torch.randn(cfg.batch, 3, cfg.image, cfg.image)
        loss = criterion(model(images), labels)  # <- here
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if step % 8 == 0:
            print(step, round(loss.item(), 4))


main()
