"""An exponential average by AveragedModel; the average is evaluated and saved, the raw model beside it."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
inputs, labels = torch.randn(80, 6), torch.arange(80) % 2
loader = DataLoader(TensorDataset(inputs[:64], labels[:64]), batch_size=16, shuffle=True)
validation = DataLoader(TensorDataset(inputs[64:], labels[64:]), batch_size=16)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
ema_model = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
for _epoch in range(3):
    model.train()
    for input, target in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(input), target).backward()
        optimizer.step()
        ema_model.update_parameters(model)
    ema_model.eval()
    with torch.no_grad():
        for input, target in validation:
            print(nn.functional.cross_entropy(ema_model(input), target).item())
    torch.save({"model": model.state_dict(), "ema": ema_model.state_dict()}, "last.pt")
