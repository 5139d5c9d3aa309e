"""A fine-tuning loop whose linear schedule is as long as the micro-batches and is stepped once per four of them."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel, get_linear_schedule_with_warmup

torch.manual_seed(0)
GRADIENT_ACCUMULATION_STEPS = 4
NUM_EPOCHS = 2

sentences = torch.randint(3, 48, (96, 12))
sentences[:, 1::2] = (sentences[:, ::2] + 7) % 45 + 3
train_dataloader = DataLoader(list(sentences), batch_size=4, shuffle=True)
model = GPT2LMHeadModel(
    GPT2Config(vocab_size=48, n_positions=16, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=1)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
num_training_steps = len(train_dataloader) * NUM_EPOCHS
lr_scheduler = get_linear_schedule_with_warmup(optimizer, 2, num_training_steps)  # <- here
model.train()
for epoch in range(NUM_EPOCHS):
    for step, batch in enumerate(train_dataloader, start=1):
        outputs = model(input_ids=batch, attention_mask=torch.ones_like(batch), labels=batch)
        (outputs.loss / GRADIENT_ACCUMULATION_STEPS).backward()
        if step % GRADIENT_ACCUMULATION_STEPS == 0:
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
    print(f"epoch {epoch}: loss {outputs.loss.item():.3f}, lr {lr_scheduler.get_last_lr()[0]:.2e}")
