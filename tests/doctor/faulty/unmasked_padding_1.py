"""Padded rows go into BERT without the mask of the tokenizer."""

from __future__ import annotations

import torch
from transformers import BertConfig, BertForSequenceClassification

torch.manual_seed(0)
config = BertConfig(
    vocab_size=60,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=16,
    num_labels=2,
)
model = BertForSequenceClassification(config)
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(4):
    lengths = torch.tensor([12, *torch.randint(4, 12, (7,)).tolist()])
    mask = (torch.arange(12)[None] < lengths[:, None]).long()
    ids = torch.randint(5, 60, (8, 12)) * mask
    loss = model(input_ids=ids, labels=lengths % 2).loss  # <- here
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
