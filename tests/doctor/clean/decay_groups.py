"""Weight decay on matrices only (minGPT), clipping, a causal model with shifted labels."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class Bigram(nn.Module):
    def __init__(self, vocabulary=40, width=16):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(32, width)
        self.block = nn.TransformerEncoderLayer(width, 2, 32, dropout=0.1, batch_first=True, norm_first=True)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, idx, targets=None):
        x = self.tokens(idx) + self.positions(torch.arange(idx.shape[1]))
        mask = nn.Transformer.generate_square_subsequent_mask(idx.shape[1])
        logits = self.head(self.norm(self.block(x, src_mask=mask, is_causal=True)))
        loss = None
        if targets is not None:
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
        return logits, loss


model = Bigram()
decay = [p for p in model.parameters() if p.dim() >= 2]
no_decay = [p for p in model.parameters() if p.dim() < 2]
groups = [{"params": decay, "weight_decay": 0.1}, {"params": no_decay, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=1e-3)
text = torch.randint(0, 40, (400,))
model.train()
for _ in range(6):
    starts = torch.randint(0, 400 - 17, (8,))
    x = torch.stack([text[i : i + 16] for i in starts])
    y = torch.stack([text[i + 1 : i + 17] for i in starts])
    _, loss = model(x, y)
    model.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
