"""A segmenter whose shadow weights go by the names of its parallel wrapper."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
scans = torch.randn(96, 1, 8, 8)
masks = (scans > 0.3).float()


class Segmenter(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 1, 1)

    def forward(self, x):
        return self.head(torch.relu(self.body(x)))


net, shadow = Segmenter(), Segmenter()
shadow.load_state_dict(net.state_dict())
parallel = nn.Sequential()
parallel.add_module("wrapped", net)
optimizer = torch.optim.Adam(parallel.parameters(), lr=1e-2)
for epoch in range(4):
    for batch in torch.randperm(64).split(16):
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(parallel(scans[batch]), masks[batch]).backward()
        optimizer.step()
        state, now = shadow.state_dict(), parallel.state_dict()
        for name in state.keys() & now.keys():
            state[name].mul_(0.9).add_(now[name], alpha=0.1)
    with torch.no_grad():
        scores = shadow(scans[64:])  # <- here
        print(epoch, nn.functional.binary_cross_entropy_with_logits(scores, masks[64:]).item())
torch.save({"shadow": shadow.state_dict()}, "shadow.pt")
