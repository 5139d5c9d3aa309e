"""Fine-tuning loop with transformers."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader, TensorDataset
from transformers import (
    DistilBertConfig,
    DistilBertForSequenceClassification,
    get_linear_schedule_with_warmup,
)

torch.manual_seed(0)
config = DistilBertConfig(
    vocab_size=60, dim=32, hidden_dim=64, n_layers=1, n_heads=2, max_position_embeddings=32, num_labels=2
)
model = DistilBertForSequenceClassification(config)
ids = torch.randint(5, 60, (192, 16))
labels = (ids[:, 0] > 30).long()
loader = DataLoader(TensorDataset(ids, torch.ones_like(ids), labels), batch_size=16, shuffle=True)
epochs = 4
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
scheduler = get_linear_schedule_with_warmup(
    optimizer, num_warmup_steps=0, num_training_steps=epochs
)  # <- here
model.train()
for epoch in range(epochs):
    for input_ids, attention_mask, target in loader:
        output = model(input_ids=input_ids, attention_mask=attention_mask, labels=target)
        output.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()  # <- here
        optimizer.zero_grad()
    print(epoch, output.loss.item(), scheduler.get_last_lr())
