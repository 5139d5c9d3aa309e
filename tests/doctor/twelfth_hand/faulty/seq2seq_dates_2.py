"""Sequence to sequence: "7 mar 2016" -> "16-3-7". GRU encoder, attention decoder, teacher forcing."""
import random

import torch
from torch import nn, optim
from torch.utils.data import DataLoader
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

PAD, SOS, EOS = 0, 1, 2
MONTHS = "jan feb mar apr may jun jul aug sep oct nov dec".split()
CHARS = ["<pad>", "<sos>", "<eos>"] + sorted(set("0123456789- " + "".join(MONTHS)))
INDEX = {c: i for i, c in enumerate(CHARS)}


def tensor_of(s):
    return torch.tensor([INDEX[c] for c in s] + [EOS])


def random_pair(rng):
    d, m, y = rng.randint(1, 28), rng.randint(1, 12), rng.randint(1980, 2029)
    year = str(y) if rng.random() < 0.5 else str(y)[2:]
    return f"{d} {MONTHS[m - 1]} {year}", f"{y % 100}-{m}-{d}"


def collate(pairs):
    src = pad_sequence([tensor_of(a) for a, _ in pairs], batch_first=True, padding_value=PAD)
    tgt = pad_sequence([tensor_of(b) for _, b in pairs], batch_first=True, padding_value=PAD)
    return src, tgt


class Encoder(nn.Module):
    def __init__(self, n, d):
        super().__init__()
        self.emb = nn.Embedding(n, d, padding_idx=PAD)
        self.gru = nn.GRU(d, d, batch_first=True, bidirectional=True)
        self.merge = nn.Linear(2 * d, d)

    def forward(self, src):
        lengths = (src != PAD).sum(dim=1)
        packed = pack_padded_sequence(self.emb(src), lengths, batch_first=True, enforce_sorted=False)
        out, h = self.gru(packed)
        out, _ = pad_packed_sequence(out, batch_first=True)
        return self.merge(out), torch.tanh(self.merge(torch.cat([h[0], h[1]], -1)))


class Decoder(nn.Module):
    def __init__(self, n, d):
        super().__init__()
        self.emb = nn.Embedding(n, d, padding_idx=PAD)
        self.cell = nn.GRUCell(2 * d, d)
        self.out = nn.Linear(2 * d, n)

    def forward(self, token, h, memory, mask):
        score = (memory @ h.unsqueeze(-1)).squeeze(-1).masked_fill(~mask, float("-inf"))
        context = (score.softmax(-1).unsqueeze(1) @ memory).squeeze(1)
        h = self.cell(torch.cat([self.emb(token), context], -1), h)
        return self.out(torch.cat([h, context], -1)), h


class Seq2Seq(nn.Module):
    def __init__(self, n=len(CHARS), d=48):
        super().__init__()
        self.encoder, self.decoder = Encoder(n, d), Decoder(n, d)

    def forward(self, src, tgt, teacher_forcing_ratio=0.5):
        memory, h = self.encoder(src)
        mask = src != PAD
        token = torch.full((len(src),), SOS)
        outputs = []
        for t in range(tgt.size(1)):
            if random.random() < teacher_forcing_ratio:
                token = tgt[:, t]
            logits, h = self.decoder(token, h, memory, mask)
            outputs.append(logits)
            token = logits.argmax(-1)
        return torch.stack(outputs, dim=1)


def train_epoch(model, loader, criterion, optimizer, tf_ratio):
    model.train()
    total = tokens = 0
    for src, tgt in loader:
        logits = model(src, tgt, tf_ratio)
        loss = criterion(logits.flatten(0, 1), tgt.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        count = (tgt != PAD).sum().item()
        total, tokens = total + loss.item() * count, tokens + count
    return total / tokens


@torch.no_grad()
def letter_accuracy(model, loader):
    model.eval()
    right = seen = 0
    for src, tgt in loader:
        pred = model(src, tgt, teacher_forcing_ratio=0.0).argmax(-1)
        real = tgt != PAD
        right += ((pred == tgt) & real).sum().item()
        seen += real.sum().item()
    return right / seen


if __name__ == "__main__":
    random.seed(8)
    torch.manual_seed(8)
    rng = random.Random(8)
    train_pairs = [random_pair(rng) for _ in range(1200)]
    known = {a for a, _ in train_pairs}
    test_pairs = [p for p in (random_pair(rng) for _ in range(300)) if p[0] not in known]
    train_loader = DataLoader(train_pairs, batch_size=40, shuffle=True, collate_fn=collate)
    test_loader = DataLoader(test_pairs, batch_size=100, collate_fn=collate)
    model = Seq2Seq()
    criterion = nn.CrossEntropyLoss(ignore_index=PAD)
    optimizer = optim.Adam(model.parameters(), lr=5e-3)
    n_epochs = 4
    for epoch in range(n_epochs):
        ratio = 1.0 - 0.5 * epoch / (n_epochs - 1)
        loss = train_epoch(model, train_loader, criterion, optimizer, ratio)
        print(f"{epoch}: teacher forcing {ratio:.1f}, loss {loss:.4f}, letters right {letter_accuracy(model, test_loader):.3f}")
