"""Train a tiny GPT-2 from scratch on generated recipe lines with the HF Trainer."""
import random
import tempfile

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

set_seed(5)

AMOUNTS = ["one", "two", "three"]
FOODS = {"eggs": "beat", "onions": "chop", "carrots": "peel", "apples": "slice", "beans": "boil", "figs": "bake"}
WORDS = ["<pad>", "<eos>", "take", "then", "and", "them", "serve"] + AMOUNTS + sorted(FOODS) + sorted(FOODS.values())
WORD2ID = {w: i for i, w in enumerate(WORDS)}
PAD, EOS = WORD2ID["<pad>"], WORD2ID["<eos>"]


def recipe(rng):
    words = []
    for _ in range(rng.randint(1, 3)):
        food = rng.choice(sorted(FOODS))
        words += ["take", rng.choice(AMOUNTS), food, "then", FOODS[food], "them", "and"]
    return words[:-1] + ["and", "serve", "<eos>"]


class RecipeDataset(Dataset):
    def __init__(self, n, seed, max_length=24):
        rng = random.Random(seed)
        self.rows = [[WORD2ID[w] for w in recipe(rng)][:max_length] for _ in range(n)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"input_ids": self.rows[i]}


def collate_fn(features):
    longest = max(len(f["input_ids"]) for f in features)
    batch = {"input_ids": [], "attention_mask": [], "labels": []}
    for f in features:
        ids = f["input_ids"]
        gap = longest - len(ids)
        batch["input_ids"].append(ids + [PAD] * gap)
        batch["attention_mask"].append([1] * len(ids) + [0] * gap)
        batch["labels"].append(ids + [-100] * gap)
    return {k: torch.tensor(v) for k, v in batch.items()}


def preprocess_logits_for_metrics(logits, labels):
    return logits.argmax(dim=-1)


def compute_metrics(eval_pred):
    predictions, labels = eval_pred
    predictions, labels = predictions[:, :-1], labels[:, 1:]
    mask = labels != -100
    return {"token_accuracy": float(np.mean(predictions[mask] == labels[mask]))}


config = GPT2Config(
    vocab_size=len(WORDS),
    n_positions=32,
    n_embd=32,
    n_layer=1,
    n_head=2,
    bos_token_id=EOS,
    eos_token_id=EOS,
    pad_token_id=PAD,
)
model = GPT2LMHeadModel(config)

args = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=32,
    per_device_eval_batch_size=64,
    num_train_epochs=4,
    learning_rate=1e-2,
    lr_scheduler_type="linear",
    warmup_steps=5,
    eval_strategy="epoch",
    save_strategy="epoch",
    load_best_model_at_end=True,
    metric_for_best_model="eval_loss",
    greater_is_better=False,
    logging_strategy="epoch",
    report_to="none",
    disable_tqdm=True,
    use_cpu=True,
)

trainer = Trainer(
    model=model,
    args=args,
    train_dataset=RecipeDataset(640, seed=0),
    eval_dataset=RecipeDataset(128, seed=1),
    data_collator=collate_fn,
    compute_metrics=compute_metrics,
    preprocess_logits_for_metrics=preprocess_logits_for_metrics,
)
trainer.train()
print(trainer.evaluate())

prompt = torch.tensor([[WORD2ID[w] for w in "take two onions then".split()]])
out = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=6, do_sample=False)
print(" ".join(WORDS[i] for i in out[0]))
