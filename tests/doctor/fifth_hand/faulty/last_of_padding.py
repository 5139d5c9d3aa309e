"""Names of places by country, read by an LSTM."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

LETTERS = "_abcdefghijklmnopqrstuvwxyz"


def names(number, seed):
    draw = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(number):
        country = int(torch.randint(0, 3, (), generator=draw))
        length = int(torch.randint(3, 15, (), generator=draw))
        word = torch.randint(1, 27, (length,), generator=draw)
        word[-2] = 3 + 7 * country
        rows.append((word, country))
    return rows


def collate(rows):
    words, countries = zip(*rows, strict=True)
    return pad_sequence(words, batch_first=True), torch.tensor(countries)


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(len(LETTERS), 12, padding_idx=0)
        self.lstm = nn.LSTM(12, 32, batch_first=True)
        self.head = nn.Linear(32, 3)

    def forward(self, words):
        states, _ = self.lstm(self.embedding(words))  # <- here
        return self.head(states[:, -1])  # <- here


torch.manual_seed(0)
train = DataLoader(names(480, 1), batch_size=32, shuffle=True, collate_fn=collate)
test = DataLoader(names(96, 2), batch_size=32, collate_fn=collate)
model = Reader()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for epoch in range(4):
    model.train()
    for words, countries in train:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(words), countries)
        loss.backward()
        optimizer.step()
    model.eval()
    right = 0
    with torch.no_grad():
        for words, countries in test:
            right += (model(words).argmax(1) == countries).sum().item()
    print(epoch, loss.item(), right / 96)
