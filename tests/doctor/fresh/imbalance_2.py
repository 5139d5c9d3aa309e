"""One positive in fifty, with the binary loss."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
labels = (torch.arange(500) % 50 == 0).float().unsqueeze(1)
batches = DataLoader(TensorDataset(torch.randn(500, 5), labels), batch_size=50, shuffle=True)
net = nn.Linear(5, 1)
opt = torch.optim.Adam(net.parameters(), lr=0.01)
for x, y in batches:
    loss = nn.functional.binary_cross_entropy_with_logits(net(x), y)  # <- here
    opt.zero_grad()
    loss.backward()
    opt.step()
