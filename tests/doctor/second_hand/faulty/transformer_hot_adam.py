"""A sentence classifier, a transformer, at a rate of 0.3 with Adam: the loss jumps up and stays above chance."""

from __future__ import annotations

import torch
from torch import nn


class SentenceClassifier(nn.Module):
    def __init__(self, vocab=80, d=32, classes=3):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.pos = nn.Parameter(0.02 * torch.randn(1, 16, d))
        layer = nn.TransformerEncoderLayer(d, 4, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.fc = nn.Linear(d, classes)

    def forward(self, ids):
        return self.fc(self.encoder(self.emb(ids) + self.pos).mean(1))


def get_batch(n=32):
    y = torch.randint(0, 3, (n,))
    ids = torch.randint(0, 80, (n, 16))
    for k in range(3):
        ids[y == k, :6] = torch.randint(20 * k, 20 * k + 20, (int((y == k).sum()), 6))
    return ids, y


def train(steps=40, lr=0.3):
    model = SentenceClassifier()
    opt = torch.optim.Adam(model.parameters(), lr=lr)  # <- here
    losses = []
    for _ in range(steps):
        ids, y = get_batch()
        loss = nn.functional.cross_entropy(model(ids), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return losses


torch.manual_seed(31)
curve = train()
print("first", curve[0], "highest", max(curve), "last", curve[-1])
