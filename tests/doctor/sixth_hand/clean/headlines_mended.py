"""Topics of headlines by self-attention over words, written out by hand."""
import random

import torch
import torch.nn as nn
from torch.utils.data import DataLoader

TOPICS = {
    "sport": "match goal coach league striker season title".split(),
    "markets": "shares bank profit rates bonds growth index".split(),
    "science": "study cells orbit telescope genome physics data".split(),
}
COMMON = "the a of after new in says as with over".split()
PAD, UNKNOWN = 0, 1


def clean(words):
    """Numbers and single letters say nothing."""
    return [word for word in words if word.isalpha() and len(word) > 1]


def make_corpus(count, seed):
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        topic = rng.randrange(len(TOPICS))
        words = rng.choices(list(TOPICS.values())[topic], k=rng.randint(1, 4)) + rng.choices(COMMON, k=rng.randint(0, 5))
        rng.shuffle(words)
        if rng.random() < 0.02:
            words = ["24", "7"]
        rows.append((clean(words), topic))
    rows = [row for row in rows if row[0]]
    return rows


class Vocabulary:
    def __init__(self, rows):
        words = sorted({word for text, _ in rows for word in text})
        self.index = {word: number + 2 for number, word in enumerate(words)}

    def __len__(self):
        return len(self.index) + 2

    def collate(self, batch):
        longest = max(1, max(len(text) for text, _ in batch))
        ids = torch.full((len(batch), longest), PAD)
        for row, (text, _) in enumerate(batch):
            codes = [self.index.get(word, UNKNOWN) for word in text]
            ids[row, : len(codes)] = torch.tensor(codes, dtype=torch.long)
        return ids, torch.tensor([topic for _, topic in batch])


class Reader(nn.Module):
    def __init__(self, words, width=32):
        super().__init__()
        self.embed = nn.Embedding(words, width, padding_idx=PAD)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, len(TOPICS))

    def attend(self, x, mask):
        scores = self.query(x) @ self.key(x).transpose(1, 2) / x.shape[-1] ** 0.5
        scores = scores.masked_fill(~mask[:, None, :], float("-inf"))
        return scores.softmax(dim=-1) @ self.value(x)

    def forward(self, ids):
        mask = ids != PAD
        x = self.embed(ids)
        x = self.norm(x + self.attend(x, mask))
        pooled = (x * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
        return self.head(pooled)


def main():
    torch.manual_seed(1)
    rows = make_corpus(640, seed=1)
    vocabulary = Vocabulary(rows)
    loader = DataLoader(rows, batch_size=32, shuffle=True, collate_fn=vocabulary.collate)
    model, criterion = Reader(len(vocabulary)), nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(3):
        total = 0.0
        for ids, topics in loader:
            optimizer.zero_grad()
            loss = criterion(model(ids), topics)
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch + 1}: loss {total / len(loader):.4f}")


if __name__ == "__main__":
    main()
