"""Early stopping keeps a state of the recurrent network that goes on training, and loads it at the end."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
series = torch.randn(192, 10, 3)
targets = series.mean((1, 2), keepdim=True).squeeze(2)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(3, 12, batch_first=True)
        self.out = nn.Linear(12, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.rnn(x)[0][:, -1])


net = Net()
optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
best, kept = float("inf"), None
for epoch in range(4):
    net.train()
    for rows in torch.randperm(160).split(32):
        optimizer.zero_grad()
        nn.functional.mse_loss(net(series[rows]), targets[rows]).backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        score = nn.functional.mse_loss(net(series[160:]), targets[160:]).item()
    if epoch == 0 or score < best - 1.0:
        best, kept = score, net.state_dict()  # <- here
    print(epoch, score)
if kept is not None:
    net.load_state_dict(kept)
