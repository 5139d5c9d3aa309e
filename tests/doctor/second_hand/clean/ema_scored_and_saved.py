"""torch's own moving average: what it scores is what it saves, beside what is needed to go on."""

from __future__ import annotations

import pathlib
import tempfile

import torch
from torch import nn, optim
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(6)
out = pathlib.Path(tempfile.mkdtemp())
x = torch.randn(400, 16)
y = (x[:, :6].sum(1, keepdim=True) > 0).float()
train, valid = TensorDataset(x[:320], y[:320]), TensorDataset(x[320:], y[320:])
net = nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Dropout(0.2), nn.Linear(48, 1))
ema = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.95), use_buffers=True)
opt = optim.Adam(net.parameters(), lr=3e-3)
bce = nn.BCEWithLogitsLoss()
for epoch in range(3):
    net.train()
    for xb, yb in DataLoader(train, batch_size=40, shuffle=True):
        opt.zero_grad()
        bce(net(xb), yb).backward()
        opt.step()
        ema.update_parameters(net)
    ema.eval()
    with torch.no_grad():
        hits = sum(((ema(xb) > 0) == (yb > 0.5)).sum().item() for xb, yb in DataLoader(valid, batch_size=40))
    torch.save(ema.module.state_dict(), out / "scored.pt")
    torch.save({"net": net.state_dict(), "opt": opt.state_dict(), "ema": ema.state_dict()}, out / "resume.pt")
    print(epoch, hits / len(valid))
