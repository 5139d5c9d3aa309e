"""Three things about a house at once: its price, its type and whether it is sold within a month."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def houses(count, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 10, generator=generator)
    price = (x[:, :3].sum(1) + 0.3 * x[:, 3] * x[:, 4]) / 2 + 0.1 * torch.randn(count, generator=generator)
    kind = (x[:, 5] > 0.4).long() + (x[:, 6] > 0).long()
    sold = (price + x[:, 7] < 0).float()
    return TensorDataset(x, price, kind, sold)


class Houses(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(10, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.price, self.kind, self.sold = nn.Linear(hidden, 1), nn.Linear(hidden, 3), nn.Linear(hidden, 1)

    def forward(self, x):
        h = self.trunk(x)
        return self.price(h).squeeze(1), self.kind(h), self.sold(h).squeeze(1)


class Combined(nn.Module):
    """The losses of all tasks, each with a weight."""

    def __init__(self, weights=(1.0, 0.5, 0.5)):
        super().__init__()
        self.register_buffer("weights", torch.tensor(weights))

    def forward(self, outputs, targets):
        losses = [
            F.mse_loss(outputs[0], targets[0]),
            F.cross_entropy(outputs[1], targets[1]),
            F.binary_cross_entropy_with_logits(outputs[2], targets[2]),
        ]
        losses = torch.stack(losses)
        return (self.weights * losses).sum()


def evaluate(model, loader):
    model.eval()
    error = kinds = sold_right = rows = 0.0
    with torch.no_grad():
        for x, price, kind, sold in loader:
            a, b, c = model(x)
            error += (a - price).pow(2).sum().item()
            kinds += (b.argmax(1) == kind).sum().item()
            sold_right += ((c > 0) == sold.bool()).sum().item()
            rows += len(x)
    return error / rows, kinds / rows, sold_right / rows


def main():
    torch.manual_seed(33)
    train, test = DataLoader(houses(640, 1), 32, shuffle=True), DataLoader(houses(160, 2), 80)
    model, criterion = Houses(), Combined()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(4):
        model.train()
        for x, *targets in train:
            optimizer.zero_grad()
            loss = criterion(model(x), targets)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f},", "error {:.3f}, kind {:.3f}, sold {:.3f}".format(*evaluate(model, test)))


if __name__ == "__main__":
    main()
