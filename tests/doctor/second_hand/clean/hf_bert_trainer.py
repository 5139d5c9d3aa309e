"""Hugging Face's Trainer with a padding collator, a mask, a held-out set and a metric."""

from __future__ import annotations

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    EarlyStoppingCallback,
    Trainer,
    TrainingArguments,
)

PAD, CLS, SEP = 0, 1, 2


def rows(count, seed):
    g = torch.Generator().manual_seed(seed)
    made = []
    for number in range(count):
        length = int(torch.randint(4, 14, (1,), generator=g))
        low = 3 if number % 2 == 0 else 12
        words = torch.randint(low, low + 24, (length,), generator=g).tolist()
        made.append({"input_ids": [CLS, *words, SEP], "label": number % 2})
    return made


def collate(batch):
    longest = max(len(row["input_ids"]) for row in batch)
    ids = torch.tensor([row["input_ids"] + [PAD] * (longest - len(row["input_ids"])) for row in batch])
    return {
        "input_ids": ids,
        "attention_mask": (ids != PAD).long(),
        "labels": torch.tensor([row["label"] for row in batch]),
    }


def accuracy(prediction):
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


torch.manual_seed(0)
config = BertConfig(
    vocab_size=40, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48,
    max_position_embeddings=32, pad_token_id=PAD,
)  # fmt: skip
arguments = TrainingArguments(
    output_dir="bert",
    per_device_train_batch_size=8,
    gradient_accumulation_steps=2,
    num_train_epochs=3,
    learning_rate=5e-4,
    warmup_steps=3,
    eval_strategy="epoch",
    save_strategy="epoch",
    load_best_model_at_end=True,
    metric_for_best_model="accuracy",
    report_to="none",
    use_cpu=True,
    disable_tqdm=True,
)
trainer = Trainer(
    model=BertForSequenceClassification(config),
    args=arguments,
    train_dataset=rows(96, 0),
    eval_dataset=rows(32, 1),
    data_collator=collate,
    compute_metrics=accuracy,
    callbacks=[EarlyStoppingCallback(early_stopping_patience=3)],
)
trainer.train()
print(trainer.evaluate())
