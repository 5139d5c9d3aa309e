"""Low-rank additions, written by hand, to a network that was trained on another task."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class LowRank(nn.Module):
    """A linear layer that stays, and a product of two thin matrices beside it."""

    def __init__(self, base, rank=4, alpha=8):
        super().__init__()
        self.base, self.scale = base, alpha / rank
        for parameter in self.base.parameters():
            parameter.requires_grad_(False)
        self.a = nn.Parameter(torch.zeros(rank, base.in_features))  # <- here
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))  # <- here

    def forward(self, x):
        return self.base(x) + self.scale * (x @ self.a.T @ self.b.T)  # <- here


class Mixer(nn.Module):
    def __init__(self, inputs=16, width=64, classes=4):
        super().__init__()
        self.up, self.mid = nn.Linear(inputs, width), nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        h = torch.relu(self.up(x))
        h = self.norm(h + torch.relu(self.mid(h)))
        return self.head(h)


def add_ranks(model, names=("up", "mid")):
    for name in names:
        setattr(model, name, LowRank(getattr(model, name)))
    return model


def task(count, turn, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 16, generator=generator)
    rule = torch.randn(16, 4, generator=torch.Generator().manual_seed(55)).roll(turn, dims=0)
    return TensorDataset(x, (x @ rule).argmax(1))


def fit(model, data, epochs, lr, name):
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=lr)
    loader = DataLoader(data, 32, shuffle=True)
    model.train()
    for epoch in range(epochs):
        hits = 0
        for x, y in loader:
            scores = model(x)
            loss = nn.functional.cross_entropy(scores, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            hits += (scores.argmax(1) == y).sum().item()
        print(f"{name}, epoch {epoch}: loss {loss.item():.3f}, accuracy {hits / len(data):.3f}")


def main():
    torch.manual_seed(41)
    model = Mixer()
    fit(model, task(512, 0, 1), epochs=3, lr=3e-3, name="first task")
    add_ranks(model)
    count = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    print(f"{count} parameters are trained")
    fit(model, task(512, 3, 2), epochs=3, lr=3e-3, name="second task")


if __name__ == "__main__":
    main()
