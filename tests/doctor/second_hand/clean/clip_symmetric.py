"""Two towers with a learned temperature: both sides of the similarity carry gradients, and both directions are scored."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn


class TwoTowers(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.image = nn.Sequential(nn.Flatten(), nn.Linear(75, 64), nn.ReLU(), nn.Linear(64, dim))
        self.tokens = nn.EmbeddingBag(60, 32)
        self.text = nn.Linear(32, dim)
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, images, texts):
        a = F.normalize(self.image(images), dim=-1)
        b = F.normalize(self.text(self.tokens(texts)), dim=-1)
        return self.logit_scale.exp() * a @ b.T


def pairs(n, patterns):
    topics = torch.randint(0, 20, (n,))
    images = patterns[topics] + 0.3 * torch.randn(n, 3, 5, 5)
    texts = topics[:, None] * 3 + torch.randint(0, 3, (n, 7))
    return images, texts


def main():
    torch.manual_seed(0)
    patterns = torch.randn(20, 3, 5, 5)
    model = TwoTowers()
    gains = [model.logit_scale]
    weights = [p for p in model.parameters() if p is not model.logit_scale]
    optimizer = torch.optim.AdamW([{"params": weights}, {"params": gains}], lr=1e-3, weight_decay=0.0)
    for step in range(30):
        logits = model(*pairs(24, patterns))
        labels = torch.arange(24)
        loss = (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            model.logit_scale.clamp_(0, math.log(100))
        if step % 10 == 0:
            print(step, loss.item())


if __name__ == "__main__":
    main()
