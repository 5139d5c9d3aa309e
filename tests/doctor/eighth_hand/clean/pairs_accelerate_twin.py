"""Do two sentences say the same? With Accelerate and gradient accumulation."""
import argparse

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def pairs(count, seed, length=6, vocab=50):
    g = torch.Generator().manual_seed(seed)
    first = torch.randint(0, vocab, (count, length), generator=g)
    same = torch.randint(0, 2, (count,), generator=g)
    second = torch.where(same[:, None] == 1, first.flip(1), torch.randint(0, vocab, (count, length), generator=g))
    same = torch.where(torch.rand(count, generator=g) < 0.15, 1 - same, same)  # people disagree
    order = same.argsort() if seed == 2 else torch.arange(count)
    return TensorDataset(first[order], second[order], same[order])


class Siamese(nn.Module):
    def __init__(self, vocab=50, width=32):
        super().__init__()
        self.embed = nn.EmbeddingBag(vocab, width, mode="mean")
        self.classify = nn.Sequential(nn.Linear(3 * width, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 2))

    def forward(self, a, b):
        a, b = self.embed(a), self.embed(b)
        return self.classify(torch.cat([a, b, (a - b).abs()], dim=1))


def training_function(args):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=args.gradient_accumulation_steps)
    torch.manual_seed(args.seed)
    train_dataloader = DataLoader(pairs(2048, 1), batch_size=32, shuffle=True)
    eval_dataloader = DataLoader(pairs(330, 2), batch_size=64)
    model = Siamese()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    updates = args.num_epochs * len(train_dataloader) // args.gradient_accumulation_steps
    lr_scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=args.lr, total_steps=updates + 1)
    model, optimizer, train_dataloader, eval_dataloader = accelerator.prepare(model, optimizer, train_dataloader, eval_dataloader)

    for epoch in range(args.num_epochs):
        model.train()
        for a, b, labels in train_dataloader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(a, b), labels)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                if accelerator.sync_gradients:
                    lr_scheduler.step()
                optimizer.zero_grad()

        model.eval()
        correct = total = 0
        for a, b, labels in eval_dataloader:
            with torch.no_grad():
                predictions = model(a, b).argmax(dim=-1)
            predictions, references = accelerator.gather_for_metrics((predictions, labels))
            correct += (predictions == references).sum().item()
            total += len(references)
        accelerator.print(f"epoch {epoch}: loss {loss.item():.4f}, accuracy {correct / total:.4f}, rate {lr_scheduler.get_last_lr()[0]:.2e}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--gradient_accumulation_steps", type=int, default=4)
    parser.add_argument("--num_epochs", type=int, default=8)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--seed", type=int, default=42)
    training_function(parser.parse_args())
