"""Averages whose batch norms fit: buffers that are averaged too, and a spectral norm that has run before it is scored."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils import spectral_norm
from torch.optim.swa_utils import AveragedModel

torch.manual_seed(0)
series = torch.randn(256, 2, 20).cumsum(2)
labels = (series[:, 0, -1] > series[:, 1, -1]).long()
network = nn.Sequential(
    nn.Conv1d(2, 8, 5),
    nn.BatchNorm1d(8),
    nn.ReLU(),
    nn.AdaptiveMaxPool1d(1),
    nn.Flatten(),
    spectral_norm(nn.Linear(8, 2)),
)
average = AveragedModel(network, use_buffers=True)
optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
for epoch in range(6):
    network.train()
    for rows in torch.randperm(192).split(32):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(series[rows]), labels[rows]).backward()
        optimizer.step()
    if epoch > 2:
        average.update_parameters(network)
network.eval()
average.eval()
with torch.no_grad():
    for each in (network, average):
        print((each(series[192:]).argmax(1) == labels[192:]).float().mean().item())
