"""Audio scene classifier with mixup of one order, and pairs of one and minus one."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
scene = torch.randint(0, 5, (300,))
spectra = torch.randn(300, 1, 8, 16) + 0.5 * scene[:, None, None, None]
loader = DataLoader(TensorDataset(spectra, scene), batch_size=50, shuffle=True)
body = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 16))
head = nn.Linear(16, 5)
optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.05, momentum=0.9)
for epoch in range(3):
    for x, y in loader:
        lam, order = float(torch.distributions.Beta(0.4, 0.4).sample()), torch.randperm(len(x))
        scores = head(body(lam * x + (1 - lam) * x[order]))
        loss = lam * nn.functional.cross_entropy(scores, y) + (1 - lam) * nn.functional.cross_entropy(
            scores, y[order]
        )
        same = torch.where(y == y[order], 1.0, -1.0)
        loss = loss + 0.1 * nn.functional.cosine_embedding_loss(body(x), body(x[order]), same)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
