"""An average of one's own is put into the model for the validation, taken out, and the raw weights are saved."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(1)
net = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 2))
opt = torch.optim.Adam(net.parameters(), lr=0.01)
shadow = {name: value.clone() for name, value in net.state_dict().items()}
valid_x, valid_y = torch.randn(20, 6), torch.randint(0, 2, (20,))
for _epoch in range(3):
    net.train()
    for _step in range(4):
        loss = nn.functional.cross_entropy(net(torch.randn(16, 6)), torch.randint(0, 2, (16,)))
        opt.zero_grad()
        loss.backward()
        opt.step()
        for name, value in net.state_dict().items():
            shadow[name].mul_(0.9).add_(value, alpha=0.1)
    backup = {name: value.clone() for name, value in net.state_dict().items()}
    net.load_state_dict(shadow)
    net.eval()
    with torch.no_grad():
        print(nn.functional.cross_entropy(net(valid_x), valid_y).item())
    net.load_state_dict(backup)
    torch.save(net.state_dict(), "best.pt")  # <- here
