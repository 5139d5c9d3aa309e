"""A classifier for several hospitals, with the graph of its gradients."""

from __future__ import annotations

import torch
from torch import autograd, nn
from torch.utils.data import DataLoader, TensorDataset


def hospital(shift, seed, number=192):
    draw = torch.Generator().manual_seed(seed)
    sick = torch.randint(0, 2, (number,), generator=draw)
    values = torch.randn(number, 10, generator=draw)
    values[:, 0] += sick
    values[:, 1] += shift * sick
    return TensorDataset(values, sick)


class Agreement:
    def __init__(self, penalty=100.0):
        self.network = nn.Sequential(nn.Linear(10, 24), nn.ReLU(), nn.Linear(24, 2))
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=1e-3, weight_decay=1e-4)
        self.penalty = penalty

    def update(self, minibatches):
        total, grads = 0.0, []
        for x, y in minibatches:
            loss = nn.functional.cross_entropy(self.network(x), y)
            total = total + loss
            grads.append(autograd.grad(loss, self.network.parameters(), create_graph=True))
        mean_loss = total / len(minibatches)
        mean_grad = autograd.grad(mean_loss, self.network.parameters(), create_graph=True)
        value = 0
        for grad in grads:
            for g, mean in zip(grad, mean_grad, strict=True):
                value = value + (g - mean).pow(2).sum()
        objective = mean_loss + self.penalty * value
        self.optimizer.zero_grad()
        objective.backward()
        self.optimizer.step()
        return {"loss": mean_loss.item(), "penalty": value.item()}


torch.manual_seed(0)
sites = [hospital(shift, seed) for seed, shift in enumerate([0.8, 1.2, -1.0])]
loaders = [DataLoader(site, batch_size=32, shuffle=True) for site in sites[:2]]
algorithm = Agreement()
for epoch in range(6):
    for minibatches in zip(*loaders, strict=True):
        report = algorithm.update(minibatches)
    algorithm.network.eval()
    with torch.no_grad():
        x, y = sites[2].tensors
        accuracy = (algorithm.network(x).argmax(1) == y).float().mean().item()
    algorithm.network.train()
    print(epoch, report, accuracy)
