"""Sequence to sequence with Bahdanau's attention: 'march 3 1994' -> '1994-03-03'."""
import random

import torch
from torch import nn

random.seed(8)
torch.manual_seed(8)
MONTHS = "january february march april may june july august september october november december".split()
PAD, SOS, EOS = 0, 1, 2
CHARS = "abcdefghijklmnopqrstuvwxyz0123456789 -"
to_id = {c: i + 3 for i, c in enumerate(CHARS)}
VOCAB = len(CHARS) + 3


def pair():
    y, m, d = random.randint(1950, 1999), random.randint(1, 12), random.randint(1, 28)
    target = f"{y}-{m:02d}" if random.random() < 0.5 else f"{y}-{m:02d}-{d:02d}"
    source = f"{MONTHS[m - 1]} {y}" if len(target) == 7 else f"{MONTHS[m - 1]} {d} {y}"
    return [to_id[c] for c in source], [SOS] + [to_id[c] for c in target] + [EOS]


def pad(rows):
    width = max(map(len, rows))
    return torch.tensor([row + [PAD] * (width - len(row)) for row in rows])


def get_batches(pairs, size, shuffle):
    if shuffle:
        random.shuffle(pairs)
    for i in range(0, len(pairs), size):
        src, trg = zip(*pairs[i : i + size])
        yield pad(src), pad(trg)


class Attention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.query, self.key, self.score = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, 1)

    def forward(self, hidden, memory, mask):
        # hidden [B, D], memory [B, S, D]
        energy = self.score(torch.tanh(self.query(hidden).unsqueeze(1) + self.key(memory))).squeeze(2)
        energy = energy.masked_fill(~mask, -1e9)
        weights = torch.softmax(energy, dim=1)
        return torch.bmm(weights.unsqueeze(1), memory).squeeze(1)


class Seq2Seq(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim, padding_idx=PAD)
        self.encoder = nn.GRU(dim, dim, batch_first=True)
        self.attention = Attention(dim)
        self.cell = nn.GRUCell(2 * dim, dim)
        self.out = nn.Linear(2 * dim, VOCAB)

    def forward(self, src, trg_in):
        memory, _ = self.encoder(self.embed(src))
        mask = src != PAD
        hidden = memory[torch.arange(len(src)), mask.sum(1) - 1]
        logits = []
        for t in range(trg_in.size(1)):
            context = self.attention(hidden, memory, mask)
            hidden = self.cell(torch.cat([self.embed(trg_in[:, t]), context], 1), hidden)
            logits.append(self.out(torch.cat([hidden, context], 1)))
        return torch.stack(logits, 1)


def main():
    pairs = [(list(src), list(trg)) for src, trg in sorted({(tuple(src), tuple(trg)) for src, trg in (pair() for _ in range(1600))})]
    random.shuffle(pairs)
    train, valid = pairs[:1000], pairs[1000:1100]
    model = Seq2Seq()
    criterion = nn.CrossEntropyLoss()  # <- here
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for epoch in range(4):
        model.train()
        for src, trg in get_batches(train, 40, True):
            logits = model(src, trg[:, :-1])
            loss = criterion(logits.reshape(-1, VOCAB), trg[:, 1:].reshape(-1))  # <- here
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        model.eval()
        right = count = 0
        with torch.no_grad():
            for src, trg in get_batches(valid, 50, False):
                guess = model(src, trg[:, :-1]).argmax(-1)
                keep = trg[:, 1:] != PAD
                right += (guess == trg[:, 1:])[keep].sum().item()
                count += keep.sum().item()
        print(f"epoch {epoch} loss {loss.item():.3f} characters right {right / count:.3f}")


main()
