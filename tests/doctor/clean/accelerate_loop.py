"""Accelerate's own example: prepare, accumulate, clip, gather for the metric."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
inputs, labels = torch.randn(70, 8), torch.arange(70) % 2
train_dataloader = DataLoader(TensorDataset(inputs[:52], labels[:52]), shuffle=True, batch_size=8)
eval_dataloader = DataLoader(TensorDataset(inputs[52:], labels[52:]), batch_size=8)
accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100)
model, optimizer, train_dataloader, eval_dataloader, scheduler = accelerator.prepare(
    model, optimizer, train_dataloader, eval_dataloader, scheduler
)
for _epoch in range(2):
    model.train()
    for source, targets in train_dataloader:
        with accelerator.accumulate(model):
            output = model(source)
            loss = nn.functional.cross_entropy(output, targets)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    model.eval()
    for source, targets in eval_dataloader:
        with torch.no_grad():
            predictions = model(source).argmax(dim=-1)
        accelerator.gather_for_metrics((predictions, targets))
