"""Dates as people write them into dates as machines do: an encoder and a decoder of GRUs, character by character."""
import random

import torch
import torch.nn as nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

MONTHS = "january february march april may june july august september october november december".split()
CHARACTERS = ["<pad>", "<go>", "<end>"] + list("abcdefghijklmnopqrstuvwxyz0123456789-, ")
CODE = {character: number for number, character in enumerate(CHARACTERS)}
PAD, GO, END = 0, 1, 2


def make_pairs(count, seed):
    rng = random.Random(seed)
    pairs = []
    for _ in range(count):
        day, month, year = rng.randint(1, 28), rng.randint(1, 12), rng.randint(1, 2030)
        pairs.append((f"{day} {MONTHS[month - 1]}, {year}", f"{year}-{month}-{day}"))
    return pairs


def collate(pairs):
    read = [torch.tensor([CODE[c] for c in text]) for text, _ in pairs]
    write = [torch.tensor([GO] + [CODE[c] for c in text] + [END]) for _, text in pairs]
    lengths = torch.tensor([len(text) for text in read])
    return pad_sequence(read, True, PAD), lengths, pad_sequence(write, True, PAD)


class Translator(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.embed = nn.Embedding(len(CHARACTERS), width, padding_idx=PAD)
        self.encoder = nn.GRU(width, width, batch_first=True)
        self.decoder = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, len(CHARACTERS))

    def forward(self, read, lengths, write):
        packed = nn.utils.rnn.pack_padded_sequence(self.embed(read), lengths, batch_first=True, enforce_sorted=False)
        _, state = self.encoder(packed)
        states, _ = self.decoder(self.embed(write), state)
        return self.out(states)


def main():
    torch.manual_seed(0)
    loader = DataLoader(make_pairs(1500, 1), batch_size=50, shuffle=True, collate_fn=collate)
    test = DataLoader(make_pairs(200, 2), batch_size=100, collate_fn=collate)
    model = Translator()
    criterion = nn.CrossEntropyLoss(ignore_index=PAD)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(3):
        model.train()
        for read, lengths, write in loader:
            scores = model(read, lengths, write[:, :-1])
            loss = criterion(scores.flatten(0, 1), write[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        right = total = 0
        with torch.no_grad():
            for read, lengths, write in test:
                target = write[:, 1:]
                guess = model(read, lengths, write[:, :-1]).argmax(-1)
                right += (guess == target)[target != PAD].sum().item()
                total += (target != PAD).sum().item()
        print(f"epoch {epoch}: loss {loss.item():.3f}, characters right {right / total:.3f}")


if __name__ == "__main__":
    main()
