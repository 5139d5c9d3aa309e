"""Triage of patient messages with a small BERT from scratch and the Trainer of transformers."""

import random
import tempfile

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

CLASSES = {
    "urgent": ["chest pain", "cannot breathe", "severe bleeding", "fainted twice"],
    "routine": ["renew my prescription", "book a checkup", "vaccination record", "new glasses"],
    "billing": ["invoice is wrong", "insurance number", "paid twice", "refund please"],
    "lab": ["blood test results", "urine sample", "xray report", "biopsy outcome"],
}
FILLER = "hello doctor i have a question since yesterday my and the please thanks about with still again today it is for me".split()


def message(label, rng):
    words = [rng.choice(FILLER) for _ in range(rng.randint(2, 14))]
    at = rng.randint(0, len(words))
    return " ".join(words[:at] + rng.choice(CLASSES[label]).split() + words[at:])


def corpus(n, seed):
    rng = random.Random(seed)
    labels = [rng.choice(list(CLASSES)) for _ in range(n)]
    return [message(label, rng) for label in labels], labels


class WordTokenizer:
    def __init__(self, texts):
        words = sorted({w for t in texts for w in t.split()})
        self.vocab = {w: i for i, w in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words])}
        self.pad_token_id = 0

    def __call__(self, text):
        ids = [self.vocab.get(w, 1) for w in text.split()]
        return [self.vocab["[CLS]"], *ids, self.vocab["[SEP]"]]


class MessageDataset(Dataset):
    def __init__(self, texts, labels, tokenizer, label2id):
        self.rows = [tokenizer(t) for t in texts]
        self.labels = [label2id[label] for label in labels]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"ids": self.rows[i], "label": self.labels[i]}


class Collator:
    def __init__(self, pad):
        self.pad = pad

    def __call__(self, rows):
        width = max(len(r["ids"]) for r in rows)
        input_ids = torch.full((len(rows), width), self.pad)
        for i, r in enumerate(rows):
            input_ids[i, : len(r["ids"])] = torch.tensor(r["ids"])
        attention_mask = (input_ids != self.pad).long()
        return {"input_ids": input_ids, "attention_mask": attention_mask, "labels": torch.tensor([r["label"] for r in rows])}


def label_table(labels):
    return {label: i for i, label in enumerate(dict.fromkeys(labels))}


def compute_metrics(prediction):
    guess = np.argmax(prediction.predictions, axis=-1)
    return {"error_rate": float((guess != prediction.label_ids).mean())}


def main():
    set_seed(42)
    train_texts, train_labels = corpus(600, 1)
    dev_texts, dev_labels = corpus(200, 2)
    tokenizer = WordTokenizer(train_texts)
    label2id = label_table(train_labels)
    train_set = MessageDataset(train_texts, train_labels, tokenizer, label2id)
    dev_set = MessageDataset(dev_texts, dev_labels, tokenizer, label2id)

    config = BertConfig(
        vocab_size=len(tokenizer.vocab), hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96,
        max_position_embeddings=32, num_labels=len(label2id), pad_token_id=tokenizer.pad_token_id,
        label2id=label2id, id2label={i: label for label, i in label2id.items()},
    )
    model = BertForSequenceClassification(config)
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(
            output_dir=out,
            num_train_epochs=5,
            per_device_train_batch_size=32,
            per_device_eval_batch_size=64,
            learning_rate=2e-3,
            warmup_steps=10,
            weight_decay=0.01,
            eval_strategy="epoch",
            save_strategy="epoch",
            save_total_limit=2,
            load_best_model_at_end=True,
            metric_for_best_model="error_rate",
            remove_unused_columns=False,
            label_names=["labels"],
            logging_steps=20,
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = Trainer(
            model=model, args=args, train_dataset=train_set, eval_dataset=dev_set,
            data_collator=Collator(tokenizer.pad_token_id), compute_metrics=compute_metrics,
        )
        trainer.train()
        print("best:", trainer.state.best_metric, "final:", trainer.evaluate()["eval_error_rate"])


if __name__ == "__main__":
    main()
