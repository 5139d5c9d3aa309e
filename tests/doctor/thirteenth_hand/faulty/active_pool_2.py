"""Active learning with BALD and Monte Carlo dropout: which wells should be measured next?"""

import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def wells(n, seed):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2, 2, (n, 6))
    rule = np.sin(2 * x[:, 0]) + 0.8 * x[:, 1] * x[:, 2]
    y = np.digitize(rule + 0.1 * rng.normal(size=n), [-0.7, 0.7])
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y)


class Net(nn.Module):
    def __init__(self, p=0.25):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(6, 96), nn.ReLU(), nn.Dropout(p),
            nn.Linear(96, 96), nn.ReLU(), nn.Dropout(p),
            nn.Linear(96, 3),
        )

    def forward(self, x):
        return self.layers(x)


class Strategy:
    def __init__(self, x, y, x_test, y_test, args):
        self.x, self.y, self.x_test, self.y_test = x, y, x_test, y_test
        self.args = args
        self.labelled = np.zeros(len(x), dtype=bool)

    def train(self):
        """A new model in each round, from scratch."""
        self.net = Net()
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=self.args.lr)
        x, y = self.x[self.labelled], self.y[self.labelled]
        self.net.train()
        for _ in range(self.args.epochs):
            order = torch.randperm(len(x))
            for i in range(0, len(x), 32):
                idx = order[i : i + 32]
                loss = F.cross_entropy(self.net(x[idx]), y[idx])
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
        return loss.item()

    @torch.no_grad()
    def predict_dropout(self, x, n_drop):
        self.net.train()  # dropout draws
        probs = torch.stack([F.softmax(self.net(x), dim=1) for _ in range(n_drop)])
        return probs

    def query(self, n):
        """The n wells of the pool about which the draws disagree most."""
        pool = np.arange(len(self.x))
        probs = self.predict_dropout(self.x[pool], self.args.n_drop)
        mean = probs.mean(0)
        entropy = -(mean * mean.clamp_min(1e-9).log()).sum(1)
        expected = -(probs * probs.clamp_min(1e-9).log()).sum(2).mean(0)
        best = (entropy - expected).topk(n).indices.numpy()
        return pool[best]

    @torch.no_grad()
    def test(self):
        self.net.eval()
        return (self.net(self.x_test).argmax(1) == self.y_test).float().mean().item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--rounds", type=int, default=6)
    p.add_argument("--start", type=int, default=60)
    p.add_argument("--per-round", type=int, default=60)
    p.add_argument("--epochs", type=int, default=40)
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--n-drop", type=int, default=20)
    args = p.parse_args()

    torch.manual_seed(17)
    rng = np.random.default_rng(17)
    strategy = Strategy(*wells(3000, 1), *wells(1000, 2), args)
    strategy.labelled[rng.choice(3000, args.start, replace=False)] = True
    for rnd in range(args.rounds):
        loss = strategy.train()
        print(f"round {rnd}  labelled {strategy.labelled.sum()}  loss {loss:.3f}  test accuracy {strategy.test():.3f}")
        if rnd + 1 < args.rounds:
            strategy.labelled[strategy.query(args.per_round)] = True


if __name__ == "__main__":
    main()
