"""Batches of texts of like length from a batch sampler of one's own, padded to the batch's longest, with a mask."""

from __future__ import annotations

import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler


class Reviews(Dataset):
    def __init__(self, n=240):
        rng = random.Random(0)
        self.rows = []
        for _ in range(n):
            label = rng.randrange(2)
            length = rng.randrange(3, 25)
            low, high = (2, 40) if label else (25, 70)
            self.rows.append(([rng.randrange(low, high) for _ in range(length)], label))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


class BucketBatchSampler(Sampler):
    def __init__(self, lengths, batch_size):
        self.lengths, self.batch_size = lengths, batch_size

    def __iter__(self):
        order = sorted(range(len(self.lengths)), key=lambda i: (self.lengths[i], random.random()))
        batches = [order[i : i + self.batch_size] for i in range(0, len(order), self.batch_size)]
        random.shuffle(batches)
        yield from batches

    def __len__(self):
        return -(-len(self.lengths) // self.batch_size)


def collate(rows):
    longest = max(len(ids) for ids, _ in rows)
    ids = torch.tensor([ids + [0] * (longest - len(ids)) for ids, _ in rows])
    return ids, ids != 0, torch.tensor([label for _, label in rows])


class MeanPooled(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(70, 16, padding_idx=0)
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, ids, mask):
        x = self.embedding(ids) * mask.unsqueeze(-1)
        return self.mlp(x.sum(1) / mask.sum(1, keepdim=True))


random.seed(2)
torch.manual_seed(2)
data = Reviews()
loader = DataLoader(
    data, batch_sampler=BucketBatchSampler([len(ids) for ids, _ in data.rows], 24), collate_fn=collate
)
model = MeanPooled()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(3):
    total = 0.0
    for ids, mask, labels in loader:
        loss = nn.functional.cross_entropy(model(ids, mask), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(labels)
    print(epoch, total / len(data))
