"""transformers' Trainer on a causal language model made from a configuration, with accumulation and evaluation."""

from __future__ import annotations

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

torch.manual_seed(0)


class Rows(torch.utils.data.Dataset):
    def __init__(self, count, seed):
        self.rows = torch.randint(1, 60, (count, 12), generator=torch.Generator().manual_seed(seed))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        ids = self.rows[index]
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


config = GPT2Config(
    vocab_size=60, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
)
arguments = TrainingArguments(
    output_dir="out",
    num_train_epochs=2,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    eval_strategy="epoch",
    save_strategy="epoch",
    logging_steps=1,
    report_to=[],
    use_cpu=True,
    disable_tqdm=True,
)
trainer = Trainer(
    model=GPT2LMHeadModel(config),
    args=arguments,
    train_dataset=Rows(36, 0),
    eval_dataset=Rows(12, 1),
)
trainer.train()
