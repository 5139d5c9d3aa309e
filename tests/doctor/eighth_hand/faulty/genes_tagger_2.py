"""Tag each base of a (drawn) sequence as coding or not."""
import argparse

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

BASES, TAGS, PAD_TAG = 5, 3, 0  # 0 is padding for both; tags 1 and 2 are outside and inside


def sequences(count, seed):
    g = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(count):
        length = int(torch.randint(20, 61, (1,), generator=g))
        bases = torch.randint(1, 5, (length,), generator=g)
        tags = torch.ones(length, dtype=torch.long)
        start = int(torch.randint(0, length - 12, (1,), generator=g))
        bases[start : start + 3] = torch.tensor([1, 4, 3])
        bases[start + 3 : start + 12 : 3] = 3
        tags[start : start + 12] = 2
        rows.append((bases, tags))
    return rows


def batches(rows, size, shuffle):
    order = torch.randperm(len(rows)) if shuffle else torch.arange(len(rows))
    for chunk in order.split(size):
        bases, tags = zip(*(rows[i] for i in chunk.tolist()))
        lengths = torch.tensor([len(b) for b in bases])
        yield pad_sequence(bases, batch_first=True), pad_sequence(tags, batch_first=True, padding_value=PAD_TAG), lengths


class Tagger(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.embed = nn.Embedding(BASES, 12, padding_idx=0)
        self.lstm = nn.LSTM(12, hidden, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * hidden, TAGS)

    def forward(self, bases, lengths):
        packed = pack_padded_sequence(self.embed(bases), lengths, batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return self.out(states)


def train_epoch(model, rows, args, criterion, optimizer):
    model.train()
    steps = -(-len(rows) // args.batch_size)
    total = 0.0
    optimizer.zero_grad()
    for idx, (bases, tags, lengths) in enumerate(batches(rows, args.batch_size, shuffle=True)):
        window = min(args.accum_iter, steps - idx // args.accum_iter * args.accum_iter)
        loss = criterion(model(bases, lengths).flatten(0, 1), tags.flatten())  # <- here
        (loss / window).backward()
        total += loss.item()
        if (idx + 1) % args.accum_iter == 0 or idx + 1 == steps:
            optimizer.step()
            optimizer.zero_grad()
    return total / steps


def f1(model, rows):
    model.eval()
    hit = found = there = 0
    with torch.no_grad():
        for bases, tags, lengths in batches(rows, 64, shuffle=False):
            predicted = model(bases, lengths)[..., 1:].argmax(-1) + 1
            real = tags != PAD_TAG
            hit += ((predicted == 2) & (tags == 2) & real).sum().item()
            found += ((predicted == 2) & real).sum().item()
            there += (tags == 2).sum().item()
    return 2 * hit / max(found + there, 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--accum_iter", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=8)
    args = parser.parse_args()
    torch.manual_seed(5)
    train_rows, val_rows = sequences(352, 1), sequences(100, 2)  # 22 batches: five windows and a half
    model = Tagger()
    criterion = nn.CrossEntropyLoss()  # <- here
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    for epoch in range(args.epochs):
        loss = train_epoch(model, train_rows, args, criterion, optimizer)
        if epoch % 2:
            print(f"epoch {epoch}: loss {loss:.4f}, F1 {f1(model, val_rows):.3f}")
