"""Hugging Face's Trainer on sequences of different length: the collate function pads, and gives no mask."""

from __future__ import annotations

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

set_seed(11)
PAD, CLS, SEP = 0, 1, 2


def make_split(count, seed):
    generator = torch.Generator().manual_seed(seed)
    examples = []
    for number in range(count):
        label = number % 2
        length = int(torch.randint(4, 14, (1,), generator=generator))
        low, high = (3, 20) if label == 0 else (15, 40)
        words = torch.randint(low, high, (length,), generator=generator).tolist()
        examples.append({"input_ids": [CLS, *words, SEP], "label": label})
    return examples


def collate(examples):
    longest = max(len(example["input_ids"]) for example in examples)
    ids = [example["input_ids"] + [PAD] * (longest - len(example["input_ids"])) for example in examples]
    return {  # <- here
        "input_ids": torch.tensor(ids),
        "labels": torch.tensor([example["label"] for example in examples]),
    }


config = BertConfig(
    vocab_size=40,
    hidden_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=48,
    max_position_embeddings=32,
    pad_token_id=PAD,
)
trainer = Trainer(
    model=BertForSequenceClassification(config),
    args=TrainingArguments(
        output_dir="tmp_trainer",
        per_device_train_batch_size=8,
        max_steps=12,
        learning_rate=5e-4,
        logging_steps=4,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    ),
    train_dataset=make_split(96, 0),
    data_collator=collate,
)
trainer.train()  # <- here
