"""Averaging is planned for the last quarter, and early stopping ends training before."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

torch.manual_seed(1)
net = nn.Linear(6, 1)
average = AveragedModel(net)
opt = torch.optim.SGD(net.parameters(), lr=0.5)
test_x, test_y = torch.randn(20, 6), torch.randn(20, 1)
best, waited = float("inf"), 0
for epoch in range(40):
    for _step in range(3):
        opt.zero_grad()
        nn.functional.mse_loss(net(torch.randn(16, 6)), torch.randn(16, 1)).backward()
        opt.step()
    if epoch >= 30:
        average.update_parameters(net)
    with torch.no_grad():
        score = nn.functional.mse_loss(net(test_x), test_y).item()
    best, waited = (score, 0) if score < best else (best, waited + 1)
    if waited == 3:
        break
with torch.no_grad():
    print(nn.functional.mse_loss(average(test_x), test_y).item())  # <- here
