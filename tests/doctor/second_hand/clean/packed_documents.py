"""A language model on packed documents: positions begin anew, attention stays in a document, no target crosses its end."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
VOCAB, DIM, BLOCK, HEADS = 48, 32, 40, 2


def documents():
    while True:
        length = int(torch.randint(5, 14, ()))
        start = int(torch.randint(3, VOCAB, ()))
        yield torch.tensor([1, *[(start + 5 * k) % (VOCAB - 3) + 3 for k in range(length)], 2])


def packed(stream):
    ids, positions, owners, targets = [], [], [], []
    for number, document in enumerate(stream):
        room = BLOCK - sum(len(part) for part in ids)
        if len(document) > room:
            break
        ids.append(document)
        positions.append(torch.arange(len(document)))
        owners.append(torch.full((len(document),), number))
        targets.append(torch.cat([document[1:], torch.tensor([-100])]))
    rest = BLOCK - sum(len(part) for part in ids)
    ids.append(torch.zeros(rest, dtype=torch.long))
    positions.append(torch.arange(rest))
    owners.append(torch.full((rest,), -1))
    targets.append(torch.full((rest,), -100))
    return tuple(torch.cat(parts) for parts in (ids, positions, owners, targets))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))

    def forward(self, x, mask):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask.unsqueeze(1))
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, DIM))
        return x + self.mlp(self.n2(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, DIM), nn.Embedding(BLOCK, DIM)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.norm = nn.LayerNorm(DIM)
        nn.init.normal_(self.tok.weight, std=0.02)
        nn.init.normal_(self.pos.weight, std=0.02)

    def forward(self, ids, positions, owners):
        same = owners[:, :, None] == owners[:, None, :]
        mask = same & torch.ones(BLOCK, BLOCK, dtype=torch.bool).tril()
        x = self.tok(ids) + self.pos(positions)
        for layer in self.layers:
            x = layer(x, mask)
        return F.linear(self.norm(x), self.tok.weight)


model, stream = Model(), documents()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
for update in range(16):
    ids, positions, owners, targets = (
        torch.stack(t) for t in zip(*[packed(stream) for _ in range(8)], strict=True)
    )
    logits = model(ids, positions, owners)
    loss = F.cross_entropy(logits.view(-1, VOCAB), targets.view(-1), ignore_index=-100)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if update % 5 == 0:
        print(update, loss.item())
