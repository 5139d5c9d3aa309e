"""Next purchase from the past ones: a self-attentive recommender (SASRec), argparse and a loop over epochs."""
import argparse

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--maxlen", default=16, type=int)
parser.add_argument("--hidden_units", default=32, type=int)
parser.add_argument("--num_blocks", default=2, type=int)
parser.add_argument("--num_heads", default=2, type=int)
parser.add_argument("--num_epochs", default=7, type=int)
parser.add_argument("--dropout_rate", default=0.1, type=float)
parser.add_argument("--lr", default=4e-3, type=float)
parser.add_argument("--batch_size", default=64, type=int)
args = parser.parse_args()
torch.manual_seed(31)
ITEMS = 50


def draw_histories(count, seed):
    """Items 1 to 50; two of three purchases follow from the one before and the one before that. 0 pads on the right."""
    g = torch.Generator().manual_seed(seed)
    rows = torch.zeros(count, args.maxlen + 1, dtype=torch.long)
    for r in range(count):
        length = int(torch.randint(6, args.maxlen + 2, (1,), generator=g))
        items = torch.randint(1, ITEMS + 1, (2,), generator=g).tolist()
        while len(items) < length:
            follows = (items[-1] * 3 + items[-2]) % ITEMS + 1 if items[-1] % 2 else (items[-1] + 7) % ITEMS + 1
            lucky = torch.rand(1, generator=g).item() < 0.7
            items.append(follows if lucky else int(torch.randint(1, ITEMS + 1, (1,), generator=g)))
        rows[r, :length] = torch.tensor(items)
    return rows


class PointWiseFeedForward(nn.Module):
    def __init__(self, hidden, dropout):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(hidden, 2 * hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(2 * hidden, hidden))

    def forward(self, x):
        return x + self.net(x)


class SASRec(nn.Module):
    def __init__(self, args):
        super().__init__()
        h = args.hidden_units
        self.item_emb = nn.Embedding(ITEMS + 1, h, padding_idx=0)
        self.pos_emb = nn.Embedding(args.maxlen, h)
        self.emb_dropout = nn.Dropout(args.dropout_rate)
        self.norms = nn.ModuleList(nn.LayerNorm(h) for _ in range(args.num_blocks))
        self.attentions = nn.ModuleList(
            nn.MultiheadAttention(h, args.num_heads, args.dropout_rate, batch_first=True) for _ in range(args.num_blocks)
        )
        self.forwards = nn.ModuleList(PointWiseFeedForward(h, args.dropout_rate) for _ in range(args.num_blocks))
        self.last_norm = nn.LayerNorm(h)
        nn.init.normal_(self.item_emb.weight, std=0.1)

    def forward(self, seqs):
        positions = torch.arange(seqs.size(1))
        x = self.emb_dropout(self.item_emb(seqs) + self.pos_emb(positions))
        causal = torch.ones(seqs.size(1), seqs.size(1), dtype=torch.bool).triu(1)
        for norm, attention, feed in zip(self.norms, self.attentions, self.forwards):
            q = norm(x)
            attended, _ = attention(q, x, x, attn_mask=causal, need_weights=False)
            x = feed(x + attended)
        return self.last_norm(x) @ self.item_emb.weight.t()


@torch.no_grad()
def evaluate(model, rows):
    model.eval()
    each, last = torch.arange(len(rows)), (rows != 0).sum(1) - 1
    scores = model(rows[:, :-1])[each, last - 1]
    rank = (scores > scores[each, rows[each, last]].unsqueeze(1)).sum(1)
    return (rank < 5).float().mean().item(), (1 / torch.log2(rank.float() + 2))[rank < 10].sum().item() / len(rows)


train_rows, valid_rows = draw_histories(1400, 1), draw_histories(250, 2)
loader = DataLoader(TensorDataset(train_rows), batch_size=args.batch_size, shuffle=True)
model = SASRec(args)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, betas=(0.9, 0.98))
for epoch in range(1, args.num_epochs + 1):
    model.train()
    total = 0.0
    for (rows,) in loader:
        seq, pos = rows[:, :-1], rows[:, 1:]
        logits = model(seq)
        loss = criterion(logits.reshape(-1, ITEMS + 1), pos.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    hit, ndcg = evaluate(model, valid_rows)
    print(f"epoch {epoch} loss {total / len(loader):.4f} HR@5 {hit:.3f} NDCG@10 {ndcg:.3f}")
