"""The script shifts the labels, and so does the model."""

from __future__ import annotations

import torch
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=1, n_head=2))
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(4):
    tokens = torch.randint(0, 50, (4, 13))
    loss = model(input_ids=tokens[:, :-1], labels=tokens[:, 1:]).loss  # <- here
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
