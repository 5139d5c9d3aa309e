"""Delay of trains from the stations behind them, by attention over a mask."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x, there):
        n, length, width = x.shape
        q, k, v = self.qkv(x).view(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        weights = scores.softmax(dim=-1)
        weights = weights.masked_fill(~there[:, None, None, :], 0.0)  # <- here
        return self.out((weights @ v).transpose(1, 2).reshape(n, length, width))


class Delays(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(5, 32)
        self.attention = Attention(32, 4)
        self.head = nn.Linear(32, 1)

    def forward(self, stops, there):
        x = self.embed(stops)
        x = x + self.attention(x, there)
        pooled = (x * there[..., None]).sum(1) / there.sum(1, keepdim=True)
        return self.head(pooled).squeeze(1)


torch.manual_seed(3)
lengths = torch.randint(3, 13, (512,))
there = torch.arange(12) < lengths[:, None]
stops = torch.randn(512, 12, 5) * there[..., None]
delay = stops[..., 0].sum(1) / lengths + 0.1 * torch.randn(512)
train = DataLoader(TensorDataset(stops[:448], there[:448], delay[:448]), batch_size=32, shuffle=True)
net = Delays()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
for epoch in range(4):
    net.train()
    total = 0.0
    for x, mask, y in train:
        loss = nn.functional.smooth_l1_loss(net(x, mask), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(y)
    net.eval()
    with torch.no_grad():
        error = (net(stops[448:], there[448:]) - delay[448:]).abs().mean()
    print(epoch, total / 448, error.item())
