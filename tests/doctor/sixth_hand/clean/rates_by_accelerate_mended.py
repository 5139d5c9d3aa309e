"""A classifier of sequences trained by Accelerate, with a warm-up and a cosine."""
import argparse

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import get_cosine_schedule_with_warmup


def walks(count, seed, length=32):
    """Random walks that drift up, down or nowhere."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 3, (count,), generator=generator)
    steps = torch.randn(count, length, 2, generator=generator) + 0.25 * (labels - 1)[:, None, None]
    return TensorDataset(steps.cumsum(1) / length**0.5, labels)


class Model(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.inputs = nn.Linear(2, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(width, 3)

    def forward(self, x):
        return self.head(self.encoder(self.inputs(x)).mean(1))


def get_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--warmup", type=float, default=0.05)
    return parser.parse_args()


def main():
    args = get_arguments()
    torch.manual_seed(12)
    accelerator = Accelerator(cpu=True)
    train_set, test_set = walks(512, 1), walks(160, 2)
    train = DataLoader(train_set, batch_size=args.batch_size, shuffle=True)
    test = DataLoader(test_set, batch_size=80)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    total = args.epochs * len(train)
    schedule = get_cosine_schedule_with_warmup(optimizer, num_warmup_steps=int(args.warmup * total), num_training_steps=total)
    model, optimizer, train, test, schedule = accelerator.prepare(model, optimizer, train, test, schedule)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(args.epochs):
        model.train()
        for x, y in train:
            with accelerator.accumulate(model):
                loss = criterion(model(x), y)
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        model.eval()
        hits = 0
        for x, y in test:
            with torch.no_grad():
                guess, truth = accelerator.gather_for_metrics((model(x).argmax(1), y))
            hits += (guess == truth).sum().item()
        accelerator.print(f"epoch {epoch}: rate {schedule.get_last_lr()[0]:.2e}, accuracy {hits / len(test_set):.3f}")


if __name__ == "__main__":
    main()
