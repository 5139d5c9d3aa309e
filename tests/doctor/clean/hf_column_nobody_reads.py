"""Transformers' trainer and a loss of the script's own, beside a column of weights that this loss does not read."""

from __future__ import annotations

import tempfile

import torch
from datasets import Dataset
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Weighted(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = nn.functional.cross_entropy(outputs.logits, labels)
        return (loss, outputs) if return_outputs else loss


torch.manual_seed(0)
config = BertConfig(
    vocab_size=60, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
)
rows = Dataset.from_dict(
    {
        "input_ids": torch.randint(5, 60, (32, 8)).tolist(),
        "attention_mask": [[1] * 8] * 32,
        "labels": torch.randint(0, 2, (32,)).tolist(),
        "row_weight": torch.rand(32).tolist(),
    }
)
arguments = TrainingArguments(
    tempfile.mkdtemp(), max_steps=4, per_device_train_batch_size=8, report_to=[], use_cpu=True
)
trainer = Weighted(BertForSequenceClassification(config), arguments, train_dataset=rows)
trainer.train()
