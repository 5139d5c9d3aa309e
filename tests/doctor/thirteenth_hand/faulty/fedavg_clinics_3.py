"""Federated averaging over six clinics of very different sizes (after McMahan et al.)."""

import argparse
import copy

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--local-epochs", type=int, default=2)
    parser.add_argument("--local-bs", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--lr-decay", type=float, default=0.9)
    parser.add_argument("--frac", type=float, default=0.67)
    parser.add_argument("--seed", type=int, default=2)
    return parser.parse_args()


def clinics(seed, sizes=(400, 250, 120, 60, 40, 30)):
    """Patients of clinics that differ in the kinds they see and in their devices' offsets."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(0, 1.3, (4, 10))
    out = []
    for n in sizes:
        share = rng.dirichlet(np.full(4, 0.8))
        y = rng.choice(4, n + 60, p=share)
        x = centres[y] + rng.normal(0, 1, (n + 60, 10)) + rng.normal(0, 0.3, 10)
        x, y = torch.tensor(x, dtype=torch.float32), torch.tensor(y)
        out.append((TensorDataset(x[:n], y[:n]), TensorDataset(x[n:], y[n:])))
    return out


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(10, 32)
        self.fc2 = nn.Linear(32, 4)

    def forward(self, x):
        return self.fc2(F.relu(self.fc1(x)))


class LocalUpdate:
    def __init__(self, args, dataset):
        self.args = args
        self.loader = DataLoader(dataset, batch_size=args.local_bs, shuffle=True)

    def train(self, net, rnd):
        net.train()
        optimizer = torch.optim.SGD(net.parameters(), lr=self.args.lr, momentum=0.5)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, self.args.lr_decay)
        losses = []
        for _ in range(self.args.local_epochs):
            for x, y in self.loader:
                optimizer.zero_grad()
                loss = F.cross_entropy(net(x), y)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        scheduler.step()
        return net.state_dict(), sum(losses) / len(losses)


def fed_avg(states, sizes):
    total = sum(sizes)
    avg = copy.deepcopy(states[0])
    for key in avg:
        avg[key] = sum(s[key] * (n / total) for s, n in zip(states, sizes))
    return avg


@torch.no_grad()
def test(net, sets):
    net.eval()
    hits = rows = 0
    for data in sets:
        x, y = data.tensors
        hits += (net(x).argmax(1) == y).sum().item()
        rows += len(y)
    return hits / rows


if __name__ == "__main__":
    args = get_args()
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    parts = clinics(args.seed)
    clients = [LocalUpdate(args, train) for train, _ in parts]
    net_glob = Net()
    for rnd in range(args.rounds):
        chosen = rng.choice(len(clients), max(1, round(args.frac * len(clients))), replace=False)
        w_locals, sizes, losses = [], [], []
        for k in chosen:
            local = copy.deepcopy(net_glob)
            w, loss = clients[k].train(local, rnd)
            w_locals.append(w)
            sizes.append(len(parts[k][0]))
            losses.append(loss)
        net_glob.load_state_dict(fed_avg(w_locals, sizes))
        print(f"round {rnd:2d}  clients {sorted(chosen.tolist())}  loss {np.mean(losses):.3f}  test accuracy {test(net_glob, [t for _, t in parts]):.3f}")
    torch.save(net_glob.state_dict(), "global.pt")
