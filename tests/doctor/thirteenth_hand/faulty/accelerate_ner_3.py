#!/usr/bin/env python
"""Names of people and towns in drawn sentences: a tagger with Accelerate and word pieces."""

import argparse
import random

import torch
import torch.nn as nn
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader

TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
SYLLABLES = "ka lo mi ren tor bel sa vin dor ul fe gan".split()
WORDS = "yesterday the old met in near with and wrote to about from a letter train went home then saw".split()
IGNORE = -100


def name(rng, first):
    return [first, *(rng.choice(SYLLABLES) for _ in range(rng.randint(1, 2)))]


def sentence(rng):
    """Words, each with its pieces, and their tags."""
    words, tags = [], []
    for _ in range(rng.randint(3, 9)):
        kind = rng.random()
        if kind < 0.2:
            for j in range(rng.randint(1, 2)):
                words.append(name(rng, rng.choice(["Mr", "Jo", "An"])))
                tags.append("B-PER" if j == 0 else "I-PER")
        elif kind < 0.4:
            words.append(name(rng, rng.choice(["New", "Port", "San"])))
            tags.append("B-LOC")
            if rng.random() < 0.5:
                words.append(name(rng, "ville"))
                tags.append("I-LOC")
        else:
            words.append([rng.choice(WORDS)])
            tags.append("O")
    return words, tags


VOCAB = {p: i for i, p in enumerate(["[PAD]", "[CLS]", "[SEP]", *SYLLABLES, *WORDS, "Mr", "Jo", "An", "New", "Port", "San", "ville"])}


def encode(words, tags):
    """The first piece of a word has its tag; special tokens and other pieces have none."""
    ids, labels = [VOCAB["[CLS]"]], [IGNORE]
    for pieces, tag in zip(words, tags):
        ids += [VOCAB[p] for p in pieces]
        labels += [TAGS.index(tag)] + [IGNORE] * (len(pieces) - 1)
    ids.append(VOCAB["[SEP]"])
    labels.append(IGNORE)
    return ids, labels


def collate(rows):
    width = max(len(ids) for ids, _ in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    labels = torch.full((len(rows), width), IGNORE)
    for i, (a, b) in enumerate(rows):
        ids[i, : len(a)] = torch.tensor(a)
        labels[i, : len(b)] = torch.tensor(b)
    return {"ids": ids, "mask": ids != VOCAB["[PAD]"], "labels": labels}


class Tagger(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.emb, self.pos = nn.Embedding(len(VOCAB), d, padding_idx=0), nn.Embedding(64, d)
        layer = nn.TransformerEncoderLayer(d, 4, 96, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(d, len(TAGS))

    def forward(self, ids, mask):
        x = self.emb(ids) + self.pos(torch.arange(ids.shape[1], device=ids.device))
        return self.head(self.encoder(x, src_key_padding_mask=~mask))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.08)
    parser.add_argument("--seed", type=int, default=13)
    args = parser.parse_args()

    set_seed(args.seed)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=args.gradient_accumulation_steps)
    rng = random.Random(args.seed)
    train = [encode(*sentence(rng)) for _ in range(640)]
    dev = [encode(*sentence(rng)) for _ in range(160)]
    train_loader = DataLoader(train, batch_size=args.batch_size, shuffle=True, collate_fn=collate)
    dev_loader = DataLoader(dev, batch_size=64, collate_fn=collate)
    model = Tagger()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, total_iters=args.epochs * len(train_loader) // args.gradient_accumulation_steps)
    model, optimizer, train_loader, dev_loader, scheduler = accelerator.prepare(model, optimizer, train_loader, dev_loader, scheduler)
    criterion = nn.CrossEntropyLoss(ignore_index=IGNORE)

    for epoch in range(args.epochs):
        model.train()
        for batch in train_loader:
            with accelerator.accumulate(model):
                logits = model(batch["ids"], batch["mask"])
                loss = criterion(logits.flatten(0, 1), batch["labels"].flatten())
                accelerator.backward(loss / args.gradient_accumulation_steps)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 5.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()

        model.eval()
        hit = found = gold = 0
        for batch in dev_loader:
            with torch.no_grad():
                logits = model(batch["ids"], batch["mask"])
            guess, labels = accelerator.gather_for_metrics((logits.argmax(-1), batch["labels"]))
            keep = labels != IGNORE
            hit += ((guess == labels) & (labels > 0) & keep).sum().item()
            found += ((guess > 0) & keep).sum().item()
            gold += ((labels > 0) & keep).sum().item()
        accelerator.print(f"epoch {epoch}: loss {loss.item():.3f}  F1 of tags {2 * hit / max(found + gold, 1):.3f}")


if __name__ == "__main__":
    main()
