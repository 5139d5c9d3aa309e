"""Stochastic weight averaging as the documentation of torch.optim shows it."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
train_set = TensorDataset(torch.randn(64, 6), torch.randn(64, 1))
test_input = torch.randn(16, 6)
loader = DataLoader(train_set, batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loss_fn = nn.MSELoss()
swa_model = AveragedModel(model)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)
swa_start = 4
swa_scheduler = SWALR(optimizer, swa_lr=0.05)
for epoch in range(8):
    for input, target in loader:
        optimizer.zero_grad()
        loss_fn(model(input), target).backward()
        optimizer.step()
    if epoch > swa_start:
        swa_model.update_parameters(model)
        swa_scheduler.step()
    else:
        scheduler.step()
torch.optim.swa_utils.update_bn(loader, swa_model)
swa_model.eval()
with torch.no_grad():
    preds = swa_model(test_input)
torch.save(swa_model.module.state_dict(), "swa.pt")
