"""A classifier of texts by a trainer, which is evaluated on rows that it trains on."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Data(torch.utils.data.Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.rows = []
        for _ in range(n):
            y = int(torch.randint(0, 4, (1,), generator=g))
            size = int(torch.randint(5, 16, (1,), generator=g))
            w = torch.randint(60, 100, (size,), generator=g)
            w[:3] = 3 + 12 * y + torch.randint(0, 12, (3,), generator=g)
            self.rows.append({"input_ids": [1, *w.tolist(), 2], "label": y})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return dict(self.rows[i])


def collate(fs):
    L = max(len(f["input_ids"]) for f in fs)
    ids = torch.tensor([f["input_ids"] + [0] * (L - len(f["input_ids"])) for f in fs])
    mask = (ids != 0).long()
    labels = torch.tensor([f["label"] for f in fs])
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def metrics(p):
    logits, labels = p
    pred = np.argmax(logits, axis=-1)
    return {"accuracy": float((pred == labels).mean())}


torch.manual_seed(0)
model = BertForSequenceClassification(
    BertConfig(
        vocab_size=100,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=24,
        num_labels=4,
        pad_token_id=0,
    )
)
train_set = Data(320, 1)
eval_set = torch.utils.data.Subset(train_set, range(96))  # <- here


class MyTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        out = model(**inputs)
        loss = nn.functional.cross_entropy(out.logits, labels)
        return (loss, out) if return_outputs else loss


args = TrainingArguments(
    output_dir="out",
    num_train_epochs=3,
    per_device_train_batch_size=16,
    per_device_eval_batch_size=64,
    learning_rate=2e-3,
    warmup_steps=5,
    eval_strategy="epoch",
    save_strategy="no",
    report_to="none",
    disable_tqdm=True,
    use_cpu=True,
    seed=0,
    logging_steps=20,
)
trainer = Trainer(
    model=model,
    args=args,
    data_collator=collate,
    train_dataset=train_set,
    eval_dataset=eval_set,
    compute_metrics=metrics,
)
trainer.train()
print(trainer.evaluate())
