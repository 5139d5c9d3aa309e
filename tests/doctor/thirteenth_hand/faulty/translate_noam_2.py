"""Attention is all you need, for the clock: "1 7 : 4 5" to words, with nn.Transformer and Noam's schedule."""

import argparse
import math
import random

import torch
import torch.nn as nn

ONES = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen".split()
TENS = {2: "twenty", 3: "thirty", 4: "forty", 5: "fifty"}


def number(n):
    return [ONES[n]] if n < 20 else [TENS[n // 10]] + ([ONES[n % 10]] if n % 10 else [])


def pair(hour, minute):
    source = list(f"{hour:02d}:{minute:02d}")
    words = number(hour) + (["oclock"] if minute == 0 else number(minute))
    return source, words


class Vocab:
    def __init__(self, specials, tokens):
        self.itos = [*specials, *tokens]
        self.stoi = {t: i for i, t in enumerate(self.itos)}

    def __call__(self, tokens):
        return [self.stoi[t] for t in tokens]


SRC = Vocab(["<pad>"], [*"0123456789:"])
TGT = Vocab(["<bos>", "<eos>", "<pad>"], [*ONES, *TENS.values(), "oclock"])
SRC_PAD, TGT_PAD, BOS, EOS = SRC.stoi["<pad>"], TGT.stoi["<pad>"], TGT.stoi["<bos>"], TGT.stoi["<eos>"]


def collate(pairs):
    def pad(rows, value):
        return nn.utils.rnn.pad_sequence([torch.tensor(r) for r in rows], batch_first=True, padding_value=value)

    return pad([SRC(s) for s, _ in pairs], SRC_PAD), pad([[BOS, *TGT(t), EOS] for _, t in pairs], TGT_PAD)


class Seq2SeqTransformer(nn.Module):
    def __init__(self, d=64, heads=4, layers=2, ff=128, dropout=0.1):
        super().__init__()
        self.d = d
        self.src_emb = nn.Embedding(len(SRC.itos), d)
        self.tgt_emb = nn.Embedding(len(TGT.itos), d)
        pos = torch.arange(16)[:, None] * torch.exp(torch.arange(0, d, 2) * (-math.log(10000.0) / d))
        table = torch.zeros(16, d)
        table[:, 0::2], table[:, 1::2] = pos.sin(), pos.cos()
        self.register_buffer("positions", table)
        self.dropout = nn.Dropout(dropout)
        self.transformer = nn.Transformer(d, heads, layers, layers, ff, dropout, batch_first=True)
        self.generator = nn.Linear(d, len(TGT.itos))

    def embed(self, emb, ids):
        return self.dropout(emb(ids) * math.sqrt(self.d) + self.positions[: ids.shape[1]])

    def forward(self, src, tgt):
        tgt_mask = torch.triu(torch.ones(tgt.shape[1], tgt.shape[1], dtype=torch.bool), 1)
        src_pad, tgt_pad = src == SRC_PAD, tgt == TGT_PAD
        out = self.transformer(
            self.embed(self.src_emb, src), self.embed(self.tgt_emb, tgt), tgt_mask=tgt_mask,
            src_key_padding_mask=src_pad, tgt_key_padding_mask=tgt_pad, memory_key_padding_mask=src_pad,
        )
        return self.generator(out)


@torch.no_grad()
def greedy(model, src, steps=7):
    out = torch.full((len(src), 1), BOS)
    for _ in range(steps):
        nxt = model(src, out)[:, -1].argmax(-1, keepdim=True)
        out = torch.cat([out, nxt], 1)
    return out[:, 1:].tolist()


def exact(model, pairs):
    model.eval()
    src, _ = collate(pairs)
    hits = 0
    for row, (_, words) in zip(greedy(model, src), pairs):
        hits += row[: row.index(EOS)] == TGT(words) if EOS in row else 0
    model.train()
    return hits / len(pairs)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=8)
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--warmup", type=int, default=60)
    p.add_argument("--factor", type=float, default=0.5)
    args = p.parse_args()

    random.seed(3)
    torch.manual_seed(3)
    times = [pair(h, m) for h in range(24) for m in range(60)]
    random.shuffle(times)
    valid, train = times[:200], times[200:]
    model = Seq2SeqTransformer()
    for w in model.parameters():
        if w.dim() > 1:
            nn.init.xavier_uniform_(w)
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9)
    noam = lambda step: args.factor * model.d**-0.5 * min((step + 1) ** -0.5, (step + 1) * args.warmup**-1.5)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, noam)
    criterion = nn.CrossEntropyLoss(ignore_index=SRC_PAD, label_smoothing=0.05)
    for epoch in range(args.epochs):
        random.shuffle(train)
        total = n = 0
        for i in range(0, len(train), args.batch):
            src, tgt = collate(train[i : i + args.batch])
            logits = model(src, tgt[:, :-1])
            loss = criterion(logits.flatten(0, 1), tgt[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            total, n = total + loss.item(), n + 1
        print(f"epoch {epoch}  loss {total / n:.3f}  lr {scheduler.get_last_lr()[0]:.1e}  exact {exact(model, valid):.3f}")


if __name__ == "__main__":
    main()
