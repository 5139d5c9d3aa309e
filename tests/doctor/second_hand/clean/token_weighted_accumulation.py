"""Accumulation over texts of very different length: sums of the tokens' losses, divided once by all the tokens."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader

PAD = 0


class Corpus(torch.utils.data.Dataset):
    def __init__(self, count=160):
        g = torch.Generator().manual_seed(0)
        self.texts = []
        for _ in range(count):
            length = int(torch.randint(3, 20, (1,), generator=g))
            start = int(torch.randint(1, 30, (1,), generator=g))
            self.texts.append(torch.tensor([(start + 3 * k) % 30 + 1 for k in range(length)]))

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, i):
        return self.texts[i]


def collate(texts):
    padded = nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=PAD)
    return padded[:, :-1], padded[:, 1:]


class GRULM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(32, 24, padding_idx=PAD)
        self.gru = nn.GRU(24, 32, batch_first=True)
        self.out = nn.Linear(32, 32)

    def forward(self, ids):
        return self.out(self.gru(self.embedding(ids))[0])


def windows(loader, size):
    window = []
    for batch in loader:
        window.append(batch)
        if len(window) == size:
            yield window
            window = []
    if window:
        yield window


torch.manual_seed(3)
model = GRULM()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
loader = DataLoader(Corpus(), batch_size=6, shuffle=True, collate_fn=collate)
for epoch in range(2):
    for window in windows(loader, 4):
        tokens = sum((targets != PAD).sum() for _, targets in window)
        optimizer.zero_grad()
        for ids, targets in window:
            loss = nn.functional.cross_entropy(
                model(ids).flatten(0, 1), targets.flatten(), ignore_index=PAD, reduction="sum"
            )
            (loss / tokens).backward()
        optimizer.step()
    print(epoch, (loss / (targets != PAD).sum()).item())
