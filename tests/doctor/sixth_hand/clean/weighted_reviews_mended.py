"""Reviews by transformers' Trainer, each with a weight of its own (how many people found it helpful)."""
import random
import tempfile

import torch
from datasets import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

GOOD, BAD, PLAIN = range(5, 15), range(15, 25), range(25, 60)


def reviews(count, seed):
    rng = random.Random(seed)
    rows = {"input_ids": [], "attention_mask": [], "labels": [], "helpful": []}
    for _ in range(count):
        label = rng.randrange(2)
        words = rng.choices(GOOD if label else BAD, k=3) + rng.choices(PLAIN, k=9)
        rng.shuffle(words)
        helpful = rng.choice([0.2, 1.0, 3.0])
        if helpful < 0.5 and rng.random() < 0.5:
            label = 1 - label
        rows["input_ids"].append([2, *words, 3])
        rows["attention_mask"].append([1] * 14)
        rows["labels"].append(label)
        rows["helpful"].append(helpful)
    return Dataset.from_dict(rows)


class WeightedTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        weights = inputs.pop("helpful", None)
        labels = inputs["labels"]
        outputs = model(**inputs)
        losses = torch.nn.functional.cross_entropy(outputs.logits, labels, reduction="none")
        loss = losses.mean() if weights is None else (losses * weights).sum() / weights.sum()
        return (loss, outputs) if return_outputs else loss


def score(prediction):
    logits, labels = prediction
    return {"accuracy": float((logits.argmax(-1) == labels).mean())}


def main():
    torch.manual_seed(0)
    config = BertConfig(vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
                        max_position_embeddings=32, num_labels=2)
    model = BertForSequenceClassification(config)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=16,
            per_device_eval_batch_size=32,
            num_train_epochs=2,
            learning_rate=2e-3,
            lr_scheduler_type="cosine",
            warmup_steps=4,
            logging_steps=10,
            eval_strategy="epoch",
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            seed=0,
            remove_unused_columns=False,
        )
        trainer = WeightedTrainer(
            model=model, args=arguments, train_dataset=reviews(320, 1), eval_dataset=reviews(64, 2), compute_metrics=score
        )
        trainer.train()
        print(trainer.evaluate())


if __name__ == "__main__":
    main()
