"""Text classifier, torch's transformer."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

PAD = 0


class TextClassifier(nn.Module):
    def __init__(self, words=60, width=32):
        super().__init__()
        self.embed = nn.Embedding(words, width, padding_idx=PAD)
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(width, 2)

    def forward(self, ids):
        padding = ids == PAD
        hidden = self.encoder(self.embed(ids), src_key_padding_mask=padding)
        hidden = hidden.masked_fill(padding.unsqueeze(-1), 0.0)
        return self.head(hidden.sum(1) / (~padding).sum(1, keepdim=True))


def collate(rows):
    texts, labels = zip(*rows, strict=True)
    return pad_sequence(texts, batch_first=True, padding_value=PAD), torch.tensor(labels)


torch.manual_seed(0)
rows = []
for _ in range(256):
    text = torch.randint(1, 60, (int(torch.randint(4, 14, ())),))
    rows.append((text, int(text[0] > 30)))
model = TextClassifier()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(2):
    for ids, labels in DataLoader(rows, batch_size=32, shuffle=True, collate_fn=collate):
        loss = nn.functional.cross_entropy(model(ids), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
