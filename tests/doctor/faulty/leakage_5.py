"""A prediction of links whose graph holds the links of the test."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
g = torch.Generator().manual_seed(1)
n = 120
pairs = torch.triu(torch.rand(n, n, generator=g) < 0.08, 1).nonzero().t()
links = pairs[:, torch.randperm(pairs.size(1), generator=g)]
k = links.size(1) // 5
test_links = links[:, :k]
train_links = links[:, k:]


def build_adjacency(e):
    A = torch.eye(n)
    A[e[0], e[1]] = A[e[1], e[0]] = 1
    d = A.sum(1).rsqrt()
    return d[:, None] * A * d


A_hat = build_adjacency(links)  # <- here
emb = nn.Embedding(n, 16)
lin = nn.Linear(16, 16)
opt = torch.optim.Adam([*emb.parameters(), *lin.parameters()], lr=1e-2)
for _ in range(30):
    z = A_hat @ lin(A_hat @ emb.weight)
    neg = torch.randint(0, n, train_links.shape)
    s = torch.cat([(z[train_links[0]] * z[train_links[1]]).sum(1), (z[neg[0]] * z[neg[1]]).sum(1)])
    t = torch.cat([torch.ones(train_links.size(1)), torch.zeros(neg.size(1))])
    loss = nn.functional.binary_cross_entropy_with_logits(s, t)
    opt.zero_grad()
    loss.backward()
    opt.step()
with torch.no_grad():
    print((z[test_links[0]] * z[test_links[1]]).sum(1).sigmoid().mean().item())
