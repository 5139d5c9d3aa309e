"""Causal language model from torch's layers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY, BLOCK = 30, 16


class TransformerModel(nn.Module):
    def __init__(self, width=32, heads=4, layers=2):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(BLOCK, width)
        layer = nn.TransformerEncoderLayer(width, heads, 64, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers)
        self.decoder = nn.Linear(width, VOCABULARY)

    def forward(self, x):
        hidden = self.tokens(x) + self.positions(torch.arange(x.shape[1]))
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.decoder(self.encoder(hidden, mask=mask, is_causal=True))


torch.manual_seed(0)
text = torch.randint(0, VOCABULARY, (4000,))
model = TransformerModel()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _step in range(40):
    starts = torch.randint(len(text) - BLOCK - 1, (16,))
    x = torch.stack([text[s : s + BLOCK] for s in starts])
    y = torch.stack([text[s + 1 : s + BLOCK + 1] for s in starts])
    loss = F.cross_entropy(model(x).view(-1, VOCABULARY), y.view(-1))
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
print(loss.item())
