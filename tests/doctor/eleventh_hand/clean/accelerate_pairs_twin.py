"""Do two questions ask the same? A pair classifier with Accelerate, after the nlp_example script."""
import argparse
import random

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import get_linear_schedule_with_warmup

PAD = 0
TOPICS = [[10 * t + k for k in range(1, 11)] for t in range(8)]


class QuestionPairs(Dataset):
    """Two questions of the same topic in other words are a pair; those of two topics are none."""

    def __init__(self, count, seed):
        rng = random.Random(seed)
        self.rows = []
        for _ in range(count):
            first = rng.randrange(8)
            second = first if rng.random() < 0.5 else rng.choice([t for t in range(8) if t != first])
            a, b = (self.question(rng, t) for t in (first, second))
            self.rows.append((a, b, int(first == second)))

    @staticmethod
    def question(rng, topic):
        words = rng.sample(TOPICS[topic], 3) + [80 + rng.randrange(1, 11) for _ in range(rng.randint(1, 5))]
        rng.shuffle(words)
        return words

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate_fn(rows):
    def pad(texts):
        longest = max(map(len, texts))
        return torch.tensor([t + [PAD] * (longest - len(t)) for t in texts])
    return {"first": pad([r[0] for r in rows]), "second": pad([r[1] for r in rows]), "labels": torch.tensor([r[2] for r in rows])}


class PairModel(nn.Module):
    def __init__(self, vocab=92, dim=32):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim, padding_idx=PAD)
        self.encode = nn.Sequential(nn.Linear(dim, 64), nn.Tanh(), nn.Linear(64, dim))
        self.classify = nn.Sequential(nn.Linear(4 * dim, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 2))

    def pool(self, ids):
        mask = (ids != PAD).unsqueeze(-1).float()
        return (self.encode(self.embed(ids)) * mask).sum(1) / mask.sum(1)

    def forward(self, first, second, labels=None):
        a, b = self.pool(first), self.pool(second)
        logits = self.classify(torch.cat([a, b, (a - b).abs(), a * b], dim=1))
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return loss, logits


def training_function(config, args):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=config["gradient_accumulation_steps"])
    set_seed(config["seed"])
    train_dataloader = DataLoader(QuestionPairs(1600, 1), shuffle=True, collate_fn=collate_fn, batch_size=config["batch_size"])
    eval_dataloader = DataLoader(QuestionPairs(300, 2), collate_fn=collate_fn, batch_size=64)
    model = PairModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    updates = config["num_epochs"] * len(train_dataloader) // config["gradient_accumulation_steps"]
    lr_scheduler = get_linear_schedule_with_warmup(optimizer, num_warmup_steps=10, num_training_steps=updates)
    model, optimizer, train_dataloader, eval_dataloader, lr_scheduler = accelerator.prepare(
        model, optimizer, train_dataloader, eval_dataloader, lr_scheduler
    )
    for epoch in range(config["num_epochs"]):
        model.train()
        total = 0.0
        for step, batch in enumerate(train_dataloader):
            with accelerator.accumulate(model):
                loss, _ = model(**batch)
                accelerator.backward(loss)
                optimizer.step()
                lr_scheduler.step()
                optimizer.zero_grad()
            total += loss.item()
        model.eval()
        correct = seen = 0
        for batch in eval_dataloader:
            with torch.no_grad():
                _, logits = model(**batch)
            predictions, references = accelerator.gather_for_metrics((logits.argmax(dim=-1), batch["labels"]))
            correct += (predictions == references).sum().item()
            seen += len(references)
        accelerator.print(f"epoch {epoch}: loss {total / len(train_dataloader):.4f} accuracy {correct / seen:.3f}")


def main():
    parser = argparse.ArgumentParser(description="Question pairs")
    parser.add_argument("--epochs", type=int, default=8)
    args = parser.parse_args()
    config = {"lr": 4e-3, "num_epochs": args.epochs, "seed": 42, "batch_size": 16, "gradient_accumulation_steps": 2}
    training_function(config, args)


if __name__ == "__main__":
    main()
