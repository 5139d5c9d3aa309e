"""A pretrained model comes in evaluation mode, and nobody calls train()."""

from __future__ import annotations

import torch
from transformers import BertConfig, BertForSequenceClassification

torch.manual_seed(0)
config = BertConfig(
    vocab_size=60, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
)
BertForSequenceClassification(config).save_pretrained("pretrained")
model = BertForSequenceClassification.from_pretrained("pretrained")  # <- here
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
for _ in range(4):
    ids = torch.randint(5, 60, (8, 10))
    ids[:, 0] = 2
    loss = model(input_ids=ids, labels=torch.randint(0, 2, (8,))).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
