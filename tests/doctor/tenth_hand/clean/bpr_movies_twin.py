"""Bayesian personalised ranking of films by matrix factorisation, with biases of items."""
import argparse
import logging

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

logging.basicConfig(level=logging.INFO, format="%(message)s")
log = logging.getLogger("bpr")


def interactions(users, items, per_user, gen):
    taste, kind = torch.randn(users, 6, generator=gen), torch.randn(items, 6, generator=gen)
    popularity = torch.randn(items, generator=gen)
    scores = taste @ kind.T + popularity
    gumbel = -torch.log(-torch.log(torch.rand(users, items, generator=gen).clamp(1e-9, 1 - 1e-9)))
    return (scores * 1.5 + gumbel).topk(per_user, dim=1).indices


class Triples(Dataset):
    """(user, film that was seen, film that was not)."""

    def __init__(self, seen, items):
        self.pairs = torch.stack([torch.arange(len(seen)).repeat_interleave(seen.size(1)), seen.reshape(-1)], dim=1)
        self.items = items
        self.known = [set(row.tolist()) for row in seen]

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, index):
        user, positive = self.pairs[index].tolist()
        negative = torch.randint(self.items, (1,)).item()
        while negative in self.known[user]:
            negative = torch.randint(self.items, (1,)).item()
        return user, positive, negative


class MatrixFactorization(nn.Module):
    def __init__(self, users, items, factors):
        super().__init__()
        self.user = nn.Embedding(users, factors)
        self.item = nn.Embedding(items, factors)
        self.item_bias = nn.Embedding(items, 1)
        nn.init.normal_(self.user.weight, std=0.1)
        nn.init.normal_(self.item.weight, std=0.1)
        nn.init.zeros_(self.item_bias.weight)

    def forward(self, user, item):
        return (self.user(user) * self.item(item)).sum(-1) + self.item_bias(item).squeeze(-1)

    def all_scores(self):
        return self.user.weight @ self.item.weight.T + self.item_bias.weight.T


def train_epoch(model, loader, optimizer):
    model.train()
    total_loss = 0.0
    for user, positive, negative in loader:
        margin = model(user, positive) - model(user, negative)
        loss = -nn.functional.logsigmoid(margin).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total_loss += loss.detach() * len(user)
    return total_loss / len(loader.dataset)


@torch.no_grad()
def hit_rate(model, seen, held_out, k=10):
    model.eval()
    scores = model.all_scores()
    scores.scatter_(1, seen, float("-inf"))
    return (scores.topk(k, dim=1).indices == held_out[:, None]).any(dim=1).float().mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--factors", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--epochs", type=int, default=5)
    args = parser.parse_args()
    torch.manual_seed(27)
    users, items = 300, 120
    history = interactions(users, items, 11, torch.Generator().manual_seed(27))
    shuffled = history.gather(1, torch.rand(history.shape).argsort(1))
    seen, held_out = shuffled[:, :10], shuffled[:, 10]
    loader = DataLoader(Triples(seen, items), batch_size=256, shuffle=True)
    model = MatrixFactorization(users, items, args.factors)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        loss = train_epoch(model, loader, optimizer)
        log.info("epoch %d loss %.4f hit@10 %.4f", epoch, float(loss), hit_rate(model, seen, held_out))
    print("done", round(hit_rate(model, seen, held_out), 4))


if __name__ == "__main__":
    main()
