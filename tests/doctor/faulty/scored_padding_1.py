"""Padded rows, whose padding counts in the labels as it stands in the inputs."""

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
PAD = 0
for _ in range(4):
    lengths = torch.randint(4, 12, (6,))
    mask = (torch.arange(12)[None] < lengths[:, None]).long()
    ids = torch.randint(3, 50, (6, 12)) * mask + PAD * (1 - mask)
    loss = model(input_ids=ids, attention_mask=mask, labels=ids).loss  # <- here
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
