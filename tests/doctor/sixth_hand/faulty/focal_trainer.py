"""A tagger of rare entities by transformers' Trainer, with the focal loss; batches are gathered from small ones."""
import random
import tempfile

import torch
import torch.nn.functional as F
from datasets import Dataset
from transformers import BertConfig, BertForTokenClassification, Trainer, TrainingArguments

TAGS = 3


def sentences(count, seed, length=16):
    rng = random.Random(seed)
    rows = {"input_ids": [], "attention_mask": [], "labels": []}
    for _ in range(count):
        used = rng.randint(8, length)
        words = [rng.randrange(4, 80) for _ in range(used)]
        tags = [1 if 4 <= word < 10 else 2 if 10 <= word < 14 else 0 for word in words]
        rows["input_ids"].append(words + [0] * (length - used))
        rows["attention_mask"].append([1] * used + [0] * (length - used))
        rows["labels"].append(tags + [-100] * (length - used))
    return Dataset.from_dict(rows)


def focal(logits, labels, gamma=2.0, count=None):
    keep = labels != -100
    losses = F.cross_entropy(logits[keep], labels[keep], reduction="none")
    losses = (1 - torch.exp(-losses)) ** gamma * losses
    return losses.mean()  # <- here


class FocalTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None, **kwargs):  # <- here
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = focal(outputs.logits, labels)  # <- here
        return (loss, outputs) if return_outputs else loss


def main():
    torch.manual_seed(4)
    config = BertConfig(vocab_size=80, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
                        max_position_embeddings=32, num_labels=TAGS, pad_token_id=0)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=8,
            num_train_epochs=3,
            learning_rate=3e-3,
            warmup_steps=3,
            logging_steps=5,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            seed=4,
        )
        trainer = FocalTrainer(model=BertForTokenClassification(config), args=arguments, train_dataset=sentences(384, 4))
        trainer.train()
    test = sentences(64, 5).with_format("torch")
    trainer.model.eval()
    with torch.no_grad():
        guess = trainer.model(input_ids=test["input_ids"][:], attention_mask=test["attention_mask"][:]).logits.argmax(-1)
    labels = test["labels"][:]
    print("right:", ((guess == labels) & (labels > 0)).sum().item() / (labels > 0).sum().item())


if __name__ == "__main__":
    main()
