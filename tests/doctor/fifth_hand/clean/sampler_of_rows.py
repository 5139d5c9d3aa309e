"""Calls of whales, each row sampled against the rarity of its class."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

torch.manual_seed(0)
call = (torch.rand(600) < 0.15).long()
spectra = torch.randn(600, 1, 12, 20)
spectra[call == 1, :, 4:7] += 1.2
train, test = TensorDataset(spectra[:480], call[:480]), TensorDataset(spectra[480:], call[480:])
counts = torch.bincount(call[:480])
weights = (counts.sum() / counts)[call[:480]]
sampler = WeightedRandomSampler(weights, num_samples=len(train))
loader = DataLoader(train, batch_size=32, sampler=sampler)
test_loader = DataLoader(test, batch_size=60)


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3), nn.ReLU()
        )
        self.head = nn.Linear(16, 2)

    def forward(self, x):
        return self.head(self.features(x).mean((2, 3)))


model = Detector()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
for epoch in range(4):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        right = sum((model(x).argmax(1) == y).sum().item() for x, y in test_loader)
    print(epoch, loss.item(), right / len(test))
