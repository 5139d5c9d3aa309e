"""A vision transformer with mixup, and a head that begins at zero."""

from __future__ import annotations

import torch
import torch.nn as nn

torch.manual_seed(3)


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        y = self.norm(x)
        return x + self.attn(y, y, y, need_weights=False)[0]


class FeedForward(nn.Sequential):
    def __init__(self, dim):
        super().__init__(nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        return x + super().forward(x)


class ViT(nn.Module):
    def __init__(self, dim=32, depth=2, classes=5):
        super().__init__()
        self.embed = nn.Linear(48, dim)
        self.pos = nn.Parameter(0.02 * torch.randn(16, dim))
        self.body = nn.Sequential(*[m for _ in range(depth) for m in (Attention(dim, 4), FeedForward(dim))])
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, classes)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, images):
        patches = nn.functional.unfold(images, 4, stride=4).transpose(1, 2)
        return self.head(self.norm(self.body(self.embed(patches) + self.pos)).mean(1))


model = ViT()
opt = torch.optim.AdamW(
    [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.05},
        {"params": [p for p in model.parameters() if p.ndim <= 1], "weight_decay": 0.0},
    ],
    lr=1e-3,
)
loss_fn = nn.CrossEntropyLoss()
prototypes = torch.randn(5, 3, 16, 16)
for _step in range(24):
    labels = torch.randint(0, 5, (32,))
    images = prototypes[labels] + torch.randn(32, 3, 16, 16)
    lam = torch.distributions.Beta(0.4, 0.4).sample()
    partner = torch.randperm(32)
    mixed = lam * images + (1 - lam) * images[partner]
    scores = model(mixed)
    loss = lam * loss_fn(scores, labels) + (1 - lam) * loss_fn(scores, labels[partner])
    opt.zero_grad()
    loss.backward()
    opt.step()
print(loss.item())
