"""A small network of leaves that learns from a large one."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def network(width):
    return nn.Sequential(
        nn.Conv2d(3, width, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * width, 6)
    )


class Distillation:
    def __init__(self, large, small, temperature=5.0):
        self.large, self.small, self.temperature = large, small, temperature
        self.kl_div_loss = nn.KLDivLoss(reduction="batchmean")
        self.optimizer = torch.optim.Adam(small.parameters(), lr=2.5e-3)

    def step(self, data, target):
        with torch.no_grad():
            large_logits = self.large(data)
        output = self.small(data)
        soft_targets = F.softmax(large_logits / self.temperature, dim=-1)
        log_prob = F.log_softmax(large_logits / self.temperature, dim=-1)  # <- here
        soft_target_loss = self.kl_div_loss(log_prob, soft_targets)  # <- here
        label_loss = F.cross_entropy(output, target)
        loss = self.temperature**2 * 0.9 * soft_target_loss + 0.1 * label_loss
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return label_loss.item(), soft_target_loss.item()


torch.manual_seed(0)
species = torch.randint(0, 6, (360,))
leaves = torch.randn(360, 3, 10, 10) + torch.randn(6, 3, 1, 1)[species]
loader = DataLoader(TensorDataset(leaves, species), batch_size=40, shuffle=True)
large = network(32)
of_large = torch.optim.Adam(large.parameters(), lr=3e-3)
for _ in range(3):
    for x, y in loader:
        of_large.zero_grad()
        F.cross_entropy(large(x), y).backward()
        of_large.step()
large.eval()
distillation = Distillation(large, network(6))
for epoch in range(5):
    for x, y in loader:
        report = distillation.step(x, y)
    print(epoch, *report)
