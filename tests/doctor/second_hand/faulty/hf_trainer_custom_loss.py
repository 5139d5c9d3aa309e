"""A Trainer with a loss of its own that takes the mean of each micro-batch's tokens under accumulation."""

from __future__ import annotations

import torch
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed


class SmoothedTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        logits = outputs.logits[:, :-1].flatten(0, 1)
        targets = labels[:, 1:].flatten()
        loss = F.cross_entropy(logits, targets, ignore_index=-100, label_smoothing=0.1)  # <- here
        return (loss, outputs) if return_outputs else loss


class Dialogues(torch.utils.data.Dataset):
    """Prompts and answers; only answers are scored, and they are of very different length."""

    def __init__(self, count):
        self.rows = []
        for number in range(count):
            answer = 2 if number % 2 else 14
            ids = torch.randint(3, 50, (18,))
            ids[-1] = 1
            labels = ids.clone()
            labels[: 18 - answer] = -100
            self.rows.append({"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


set_seed(0)
config = GPT2Config(
    vocab_size=50, n_positions=20, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=1
)
arguments = TrainingArguments(
    output_dir="custom",
    per_device_train_batch_size=2,
    gradient_accumulation_steps=4,
    max_steps=8,
    learning_rate=1e-3,
    save_strategy="no",
    report_to=[],
    use_cpu=True,
    disable_tqdm=True,
)
SmoothedTrainer(model=GPT2LMHeadModel(config), args=arguments, train_dataset=Dialogues(64)).train()
