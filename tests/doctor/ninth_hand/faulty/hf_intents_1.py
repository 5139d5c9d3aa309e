import numpy as np
import torch
from datasets import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

set_seed(17)
rng = np.random.default_rng(17)
INTENTS = {0: range(10, 18), 1: range(18, 26), 2: range(26, 34), 3: range(34, 42)}


def make(n):
    rows = {"tokens": [], "intent": [], "weight": []}
    for _ in range(n):
        y = int(rng.integers(0, 4))
        length = int(rng.integers(4, 14))
        words = rng.integers(42, 90, length)
        words[rng.permutation(length)[:3]] = rng.choice(list(INTENTS[y]), 3)
        rows["tokens"].append([2, *words.tolist(), 3])
        rows["intent"].append(y)
        rows["weight"].append(2.0 if y == 3 else 1.0)
    return Dataset.from_dict(rows)


def preprocess(row):
    return {"input_ids": row["tokens"], "attention_mask": [1] * len(row["tokens"]), "labels": row["intent"]}


def collate(rows):
    width = max(len(row["input_ids"]) for row in rows)
    batch = {
        "input_ids": torch.tensor([row["input_ids"] + [0] * (width - len(row["input_ids"])) for row in rows]),
        "attention_mask": torch.tensor([row["attention_mask"] + [0] * (width - len(row["attention_mask"])) for row in rows]),
        "labels": torch.tensor([row["labels"] for row in rows]),
    }
    if "weight" in rows[0]:
        batch["weight"] = torch.tensor([row["weight"] for row in rows])
    return batch


def compute_metrics(eval_pred):
    logits, labels = eval_pred
    predictions = np.argmax(logits, axis=-1)
    return {"accuracy": float((predictions == labels).mean())}


class WeightedTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):  # <- here
        labels, weight = inputs.pop("labels"), inputs.pop("weight", None)
        outputs = model(**inputs)
        loss = torch.nn.functional.cross_entropy(outputs.logits, labels, reduction="none")
        if weight is not None:
            loss = loss * weight / 1.25
        loss = loss.mean()  # <- here
        return (loss, outputs) if return_outputs else loss


train, valid = (make(n).map(preprocess, remove_columns=["tokens", "intent"]) for n in (960, 120))
model = BertForSequenceClassification(BertConfig(
    vocab_size=96, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, max_position_embeddings=32, num_labels=4
))
args = TrainingArguments(
    output_dir="out", per_device_train_batch_size=8, gradient_accumulation_steps=2, num_train_epochs=4, learning_rate=3e-3, warmup_steps=20,
    eval_strategy="epoch", save_strategy="no", logging_steps=15, remove_unused_columns=False, report_to=[], disable_tqdm=True, use_cpu=True,
)
trainer = WeightedTrainer(model=model, args=args, train_dataset=train, eval_dataset=valid, data_collator=collate, compute_metrics=compute_metrics)
trainer.train()
print(trainer.evaluate())
