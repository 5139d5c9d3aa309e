"""A text classifier whose sampler is given one weight for each class."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler


class Texts(Dataset):
    def __init__(self):
        self.labels = (torch.rand(240) < 0.2).long()
        self.words = torch.randint(0, 40, (240, 6)) + 20 * self.labels[:, None]

    def __len__(self):
        return len(self.words)

    def __getitem__(self, index):
        return self.words[index], self.labels[index]


torch.manual_seed(0)
texts = Texts()
weights = [1 / float((texts.labels == label).sum()) for label in (0, 1)]
loader = DataLoader(texts, batch_size=24, sampler=WeightedRandomSampler(weights, len(texts)))  # <- here
model = nn.Sequential(nn.EmbeddingBag(64, 12), nn.Linear(12, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for words, labels in loader:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(words), labels).backward()
    optimizer.step()
