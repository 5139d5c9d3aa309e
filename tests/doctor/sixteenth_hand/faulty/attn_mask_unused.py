import math

import torch
import torch.nn as nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

torch.manual_seed(4)
PAD = 0


class SimpleAttention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.q = nn.Linear(dim, dim)
        self.k = nn.Linear(dim, dim)
        self.v = nn.Linear(dim, dim)

    def forward(self, x, mask=None):
        scores = self.q(x) @ self.k(x).transpose(1, 2) / math.sqrt(x.size(-1))
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, :], float("-inf"))
        return torch.softmax(scores, dim=-1) @ self.v(x)


class Tagger(nn.Module):
    """Which half of the vocabulary is in the majority in the whole sentence?"""

    def __init__(self, vocab=41, dim=16):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim, padding_idx=PAD)
        self.attention = SimpleAttention(dim)
        self.norm = nn.LayerNorm(dim)
        self.out = nn.Linear(dim, 2)

    def forward(self, sequence):
        mask = (sequence != PAD)
        x = self.emb(sequence)
        x = self.norm(x + self.attention(x))
        return self.out(x[:, 0])


def sample():
    n = int(torch.randint(3, 30, (1,)) // 2 * 2 + 1)
    share = 0.7 if torch.rand(1) < 0.5 else 0.3
    high = torch.rand(n) < share
    seq = torch.where(high, torch.randint(21, 41, (n,)), torch.randint(1, 21, (n,)))
    return seq, int(high.sum() * 2 > n)


def collate(batch):
    seqs, labels = zip(*batch)
    return pad_sequence(seqs, batch_first=True, padding_value=PAD), torch.tensor(labels)


train = [sample() for _ in range(2000)]
test = [sample() for _ in range(400)]
train_loader = DataLoader(train, batch_size=50, shuffle=True, collate_fn=collate)
test_loader = DataLoader(test, batch_size=100, collate_fn=collate)

model = Tagger()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
loss_fn = nn.CrossEntropyLoss()

for epoch in range(6):
    model.train()
    for seqs, labels in train_loader:
        optimizer.zero_grad()
        loss = loss_fn(model(seqs), labels)
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        hits = sum((model(s).argmax(1) == l).sum().item() for s, l in test_loader)
        alone = sum((model(s[None]).argmax(1).item() == l) for s, l in test)
    print(f"epoch {epoch} loss {loss.item():.3f} acc in batches {hits / len(test):.3f} one by one {alone / len(test):.3f}")
