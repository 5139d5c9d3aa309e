"""Knowledge graph embedding, stopped early."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
triples = torch.stack(
    [torch.randint(0, 30, (400,)), torch.randint(0, 4, (400,)), torch.randint(0, 30, (400,))], 1
)
train, valid = triples[:330], triples[330:]


class TransE(nn.Module):
    def __init__(self):
        super().__init__()
        self.entity, self.relation = nn.Embedding(30, 16), nn.Embedding(4, 16)

    def forward(self, t):
        return -(self.entity(t[:, 0]) + self.relation(t[:, 1]) - self.entity(t[:, 2])).norm(dim=1)


def wrong(t):
    t = t.clone()
    t[:, 2] = torch.randint(0, 30, (len(t),))
    return t


model = TransE()
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
criterion = nn.MarginRankingLoss(1.0)
best, waited = 1e9, 0
for epoch in range(6):
    model.train()
    for t in train[torch.randperm(330)].split(30):
        optimizer.zero_grad()
        criterion(model(t), model(wrong(t)), torch.ones(len(t))).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        for t in valid.split(16):
            loss = criterion(model(t), model(wrong(t)), torch.ones(len(t)))
    valid_loss = loss.item()  # <- here
    waited = 0 if valid_loss < best else waited + 1
    best = min(best, valid_loss)
    print(epoch, valid_loss, waited)
