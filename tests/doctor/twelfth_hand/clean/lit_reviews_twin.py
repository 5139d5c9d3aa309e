# Sentiment of generated reviews. A very small "Lightning" of our own, because the real one is not on the cluster.
import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import DataLoader

GOOD = "great lovely superb charming brilliant fun warm clever".split()
BAD = "dull awful boring weak bland messy tedious cheap".split()
FILL = "the film was plot actors a bit rather and scene of music story with its director this one".split()


def make_reviews(n, rng):
    out = []
    for _ in range(n):
        label = rng.random() < 0.5
        words = [rng.choice(FILL) for _ in range(rng.randint(3, 24))]
        for _ in range(rng.randint(1, 2)):
            words.insert(rng.randint(0, len(words)), rng.choice(GOOD if label else BAD))
        out.append((words, int(label)))
    return out


class Vocab:
    PAD, UNK = 0, 1

    def __init__(self, texts):
        words = sorted({w for t in texts for w in t})
        self.stoi = {w: i + 2 for i, w in enumerate(words)}

    def __len__(self):
        return len(self.stoi) + 2

    def encode(self, words):
        return torch.tensor([self.stoi.get(w, self.UNK) for w in words])


class ReviewsModule:
    """data module"""

    def __init__(self, seed=3):
        rng = random.Random(seed)
        self.train, self.val = make_reviews(1200, rng), make_reviews(300, rng)
        self.vocab = Vocab([w for w, _ in self.train])

    def collate(self, batch):
        batch = sorted(batch, key=lambda pair: len(pair[0]), reverse=True)
        ids = [self.vocab.encode(words) for words, _ in batch]
        lengths = torch.tensor([len(i) for i in ids])
        labels = torch.tensor([label for _, label in batch])
        return pad_sequence(ids, batch_first=True, padding_value=Vocab.PAD), lengths, labels

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=32, shuffle=True, collate_fn=self.collate)

    def val_dataloader(self):
        return DataLoader(self.val, batch_size=100, collate_fn=self.collate)


class LitModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.logged = {}

    def log(self, name, value, n):
        total, count = self.logged.get(name, (0.0, 0))
        self.logged[name] = (total + float(value) * n, count + n)


class LitSentiment(LitModule):
    def __init__(self, vocab_size, dim=24, hidden=32, lr=5e-3):
        super().__init__()
        self.lr = lr
        self.emb = nn.Embedding(vocab_size, dim, padding_idx=Vocab.PAD)
        self.drop = nn.Dropout(0.4)
        self.rnn = nn.LSTM(dim, hidden, batch_first=True)
        self.fc = nn.Linear(hidden, 2)

    def forward(self, ids, lengths):
        x = self.drop(self.emb(ids))
        packed = pack_padded_sequence(x, lengths, batch_first=True)
        _, (h, _) = self.rnn(packed)
        return self.fc(self.drop(h[-1]))

    def training_step(self, batch, idx):
        ids, lengths, y = batch
        loss = F.cross_entropy(self(ids, lengths), y)
        self.log("train_loss", loss.detach(), len(y))
        return loss

    def validation_step(self, batch, idx):
        ids, lengths, y = batch
        logits = self(ids, lengths)
        self.log("val_loss", F.cross_entropy(logits, y), len(y))
        self.log("val_acc", (logits.argmax(-1) == y).float().mean(), len(y))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)


class TinyTrainer:
    def __init__(self, max_epochs, clip=1.0):
        self.max_epochs, self.clip = max_epochs, clip

    def fit(self, module, dm):
        opt = module.configure_optimizers()
        train_dl, val_dl = dm.train_dataloader(), dm.val_dataloader()
        for epoch in range(self.max_epochs):
            module.train()
            for i, batch in enumerate(train_dl):
                loss = module.training_step(batch, i)
                opt.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(module.parameters(), self.clip)
                opt.step()
            self.validate(module, val_dl)
            print(epoch, {k: round(t / c, 4) for k, (t, c) in module.logged.items()})
            module.logged.clear()

    @torch.no_grad()
    def validate(self, module, val_dl):
        module.eval()
        for i, batch in enumerate(val_dl):
            module.validation_step(batch, i)


def main():
    torch.manual_seed(3)
    dm = ReviewsModule()
    TinyTrainer(max_epochs=5).fit(LitSentiment(len(dm.vocab)), dm)


if __name__ == "__main__":
    main()
