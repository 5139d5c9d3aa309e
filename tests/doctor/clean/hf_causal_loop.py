"""A causal language model of transformers in a loop of one's own: labels are the inputs, padding is -100."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel, get_linear_schedule_with_warmup

torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=1, n_head=2))
rows = torch.randint(1, 50, (32, 12))
rows[::3, 9:] = 0
loader = DataLoader(rows, batch_size=4, shuffle=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
epochs = 2
scheduler = get_linear_schedule_with_warmup(optimizer, 2, epochs * len(loader))
model.train()
for _epoch in range(epochs):
    for input_ids in loader:
        labels = input_ids.masked_fill(input_ids == 0, -100)
        outputs = model(input_ids=input_ids, attention_mask=(input_ids != 0).long(), labels=labels)
        outputs.loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
model.save_pretrained("out")
