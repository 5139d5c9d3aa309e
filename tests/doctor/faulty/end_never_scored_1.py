"""The padding token is the one that ends a text, and labels are left out by that token."""

from __future__ import annotations

import torch
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
config = GPT2Config(
    vocab_size=50, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=1, eos_token_id=2
)
model = GPT2LMHeadModel(config)
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
PAD = config.eos_token_id  # <- here
for _ in range(6):
    lengths = torch.randint(4, 11, (6,))
    mask = (torch.arange(12)[None] <= lengths[:, None]).long()  # the end belongs to the text
    ids = torch.where(torch.arange(12)[None] < lengths[:, None], torch.randint(3, 50, (6, 12)), PAD)
    labels = ids.masked_fill(ids == PAD, -100)
    loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
