"""Causal attention by a mask of tril."""

from __future__ import annotations

import math

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, d=32, h=2):
        super().__init__()
        self.qkv, self.o, self.h = nn.Linear(d, 3 * d), nn.Linear(d, d), h

    def forward(self, x, mask):
        B, T, D = x.shape
        q, k, v = (t.view(B, T, self.h, D // self.h).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        a = (q @ k.transpose(-2, -1)) / math.sqrt(D // self.h)
        a = a.masked_fill(mask[:T, :T] == 0, float("-inf")).softmax(-1)
        return x + self.o((a @ v).transpose(1, 2).reshape(B, T, D))


class LM(nn.Module):
    def __init__(self, v=40, d=32, T=24):
        super().__init__()
        self.e, self.p = nn.Embedding(v, d), nn.Embedding(T, d)
        self.b = nn.ModuleList(Block() for _ in range(2))
        self.f = nn.Linear(d, v)
        self.register_buffer("mask", torch.tril(torch.ones(T, T)))

    def forward(self, x):
        h = self.e(x) + self.p(torch.arange(x.shape[1]))
        for b in self.b:
            h = b(h, self.mask)
        return self.f(h)


torch.manual_seed(0)
T = torch.randint(0, 40, (5000,))
net = LM()
opt = torch.optim.Adam(net.parameters(), 1e-3)
for _s in range(20):
    i = torch.randint(0, 4900, (16,))
    x = torch.stack([T[j : j + 24] for j in i])
    y = torch.stack([T[j + 1 : j + 25] for j in i])
    loss = nn.functional.cross_entropy(net(x).flatten(0, 1), y.flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
