"""Solubility of drawn molecules: message passing over batches of joined graphs (a trainer and a collate function)."""
import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


def get_args():
    p = argparse.ArgumentParser()
    p.add_argument("--hidden", type=int, default=48)
    p.add_argument("--depth", type=int, default=3)
    p.add_argument("--epochs", type=int, default=12)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--lr", type=float, default=4e-3)
    return p.parse_args()


class Molecules(Dataset):
    """A ring or a chain with branches; the target depends on the kinds of neighbouring atoms."""

    def __init__(self, count, seed):
        g = torch.Generator().manual_seed(seed)
        self.graphs = []
        for _ in range(count):
            n = int(torch.randint(5, 13, (1,), generator=g))
            kinds = torch.randint(0, 4, (n,), generator=g)
            parents = [int(torch.randint(max(0, i - 3), i, (1,), generator=g)) for i in range(1, n)]
            edges = torch.tensor([list(range(1, n)), parents])
            if torch.rand(1, generator=g) < 0.5:
                edges = torch.cat([edges, torch.tensor([[0], [n - 1]])], dim=1)
            edges = torch.cat([edges, edges.flip(0)], dim=1)
            pairs = (kinds[edges[0]] == 0) & (kinds[edges[1]] == 2)
            target = 0.8 * pairs.sum() - 0.4 * (kinds == 1).sum() + 0.2 * (edges.size(1) // 2 - n + 1)
            self.graphs.append((kinds, edges, target.float()))

    def __len__(self):
        return len(self.graphs)

    def __getitem__(self, i):
        return self.graphs[i]


def collate(graphs):
    kinds, edges, batch, targets, offset = [], [], [], [], 0
    for i, (k, e, t) in enumerate(graphs):
        kinds.append(k)
        edges.append(e + offset)
        batch.append(torch.full((len(k),), i))
        targets.append(t)
        offset += len(k)
    return torch.cat(kinds), torch.cat(edges, dim=1), torch.cat(batch), torch.stack(targets)


class GINLayer(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.eps = nn.Parameter(torch.zeros(1))
        self.mlp = nn.Sequential(nn.Linear(hidden, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, hidden))

    def forward(self, h, edges):
        messages = torch.zeros_like(h).index_add(0, edges[1], h[edges[0]])
        return torch.relu(self.mlp((1 + self.eps) * h + messages))


class GIN(nn.Module):
    def __init__(self, hidden, depth):
        super().__init__()
        self.atom = nn.Embedding(4, hidden)
        self.layers = nn.ModuleList([GINLayer(hidden) for _ in range(depth)])
        self.readout = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, kinds, edges, batch, count):
        h = self.atom(kinds)
        for layer in self.layers:
            h = layer(h, edges)
        pooled = torch.zeros(count, h.size(1)).index_add(0, batch, h)
        return self.readout(pooled).squeeze(-1)


def run(model, loader, optimizer=None):
    model.train(optimizer is not None)
    total, count = 0.0, 0
    for kinds, edges, batch, targets in loader:
        with torch.set_grad_enabled(optimizer is not None):
            predicted = model(kinds, edges, batch, len(targets))
            loss = nn.functional.mse_loss(predicted, targets)
        if optimizer is not None:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        total += loss.item() * len(targets)
        count += len(targets)
    return total / count


def main():
    args = get_args()
    torch.manual_seed(4)
    train = DataLoader(Molecules(900, 1), args.batch, shuffle=True, collate_fn=collate)
    valid = DataLoader(Molecules(200, 2), args.batch, collate_fn=collate)
    model = GIN(args.hidden, args.depth)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.85)
    for epoch in range(args.epochs):
        error = run(model, train, optimizer)
        scheduler.step()
        print(f"epoch {epoch} train {error:.4f} valid {run(model, valid):.4f} of variance 1.0 lr {scheduler.get_last_lr()[0]:.1e}")


if __name__ == "__main__":
    main()
