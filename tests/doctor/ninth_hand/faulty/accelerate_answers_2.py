import argparse
import logging

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logging.basicConfig(level=logging.INFO, format="%(message)s")
log = logging.getLogger("answers")


def questions(n, seed):
    g = torch.Generator().manual_seed(seed)
    table = torch.randint(0, 5, (60,), generator=torch.Generator().manual_seed(0))
    ids = torch.randint(1, 60, (n, 12), generator=g)
    answer = torch.stack([table[ids[:, :12]].eq(c).sum(1) for c in range(5)], 1).argmax(1)
    return TensorDataset(ids, answer)


class Bag(nn.Module):
    def __init__(self, vocab=60, dim=48):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.body = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.GELU(), nn.Dropout(0.1), nn.Linear(2 * dim, dim), nn.GELU())
        self.choose = nn.Linear(dim, 5)

    def forward(self, ids):
        return self.choose(self.body(self.embed(ids).mean(1)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gradient_accumulation_steps", type=int, default=4)
    parser.add_argument("--lr", type=float, default=0.3)
    parser.add_argument("--epochs", type=int, default=4)
    args = parser.parse_args()
    set_seed(6)
    accelerator = Accelerator(gradient_accumulation_steps=args.gradient_accumulation_steps, cpu=True)
    train_loader = DataLoader(questions(1600, 1), batch_size=16, shuffle=True)
    eval_loader = DataLoader(questions(300, 2), batch_size=64)
    model = Bag()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.epochs * len(train_loader) // args.gradient_accumulation_steps)
    model, optimizer, train_loader, eval_loader, scheduler = accelerator.prepare(model, optimizer, train_loader, eval_loader, scheduler)
    criterion = nn.CrossEntropyLoss()

    for epoch in range(args.epochs):
        model.train()
        for ids, answer in train_loader:
            with accelerator.accumulate(model):
                loss = criterion(model(ids), answer) / args.gradient_accumulation_steps  # <- here
                accelerator.backward(loss)  # <- here
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        model.eval()
        right = seen = 0
        for ids, answer in eval_loader:
            with torch.no_grad():
                guess = model(ids).argmax(-1)
            guess, answer = accelerator.gather_for_metrics((guess, answer))
            right += (guess == answer).sum().item()
            seen += len(answer)
        log.info("epoch %d loss %.3f accuracy %.3f", epoch, loss.item(), right / seen)


if __name__ == "__main__":
    main()
