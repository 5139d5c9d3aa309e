"""Hugging Face's Trainer with a loss of its own."""

from __future__ import annotations

import tempfile

import torch
from torch.nn import functional as F
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Lines(Dataset):
    def __init__(self):
        self.rows = torch.randint(0, 48, (96, 16), generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


class WeightedTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = F.cross_entropy(outputs.logits[:, :-1].reshape(-1, 48), labels[:, 1:].reshape(-1))
        return (loss, outputs) if return_outputs else loss


torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=48, n_positions=32, n_embd=32, n_layer=1, n_head=2))
arguments = TrainingArguments(
    tempfile.mkdtemp(),
    num_train_epochs=2,
    per_device_train_batch_size=8,
    learning_rate=1e-3,
    report_to=[],
    use_cpu=True,
    logging_steps=6,
    save_strategy="no",
)
WeightedTrainer(model=model, args=arguments, train_dataset=Lines()).train()
