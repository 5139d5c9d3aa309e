"""The average is validated, the raw model is saved."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

torch.manual_seed(0)
model = nn.Linear(6, 2)
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
held_out = torch.randn(16, 6), torch.randint(0, 2, (16,))
for _epoch in range(3):
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(torch.randn(16, 6)), torch.randint(0, 2, (16,))).backward()
        optimizer.step()
        ema.update_parameters(model)
    ema.eval()
    with torch.no_grad():
        print(nn.functional.cross_entropy(ema(held_out[0]), held_out[1]).item())
torch.save(model.state_dict(), "model.pt")  # <- here
