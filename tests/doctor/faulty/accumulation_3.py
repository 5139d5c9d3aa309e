"""The model takes any keyword, so the Trainer believes that it normalises its loss by num_items_in_batch."""

from __future__ import annotations

import torch
from torch import nn
from transformers import Trainer, TrainingArguments

torch.manual_seed(0)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 3)

    def forward(self, inputs, labels=None, **kwargs):
        logits = self.head(inputs)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}  # <- here


rows = [{"inputs": torch.randn(6), "labels": torch.tensor(i % 3)} for i in range(48)]
arguments = TrainingArguments(
    output_dir="out",
    max_steps=4,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=3,
    save_strategy="no",
    report_to=[],
    use_cpu=True,
    disable_tqdm=True,
)
Trainer(model=Model(), args=arguments, train_dataset=rows).train()
