"""A small convolutional classifier of shapes that is tested with dropout and batch statistics on."""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1 = nn.Conv2d(1, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width * 2, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width * 2)
        self.dropout = nn.Dropout(0.25)
        self.fc = nn.Linear(width * 2 * 3 * 3, 4)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.bn2(self.conv2(x))), 2)
        return self.fc(self.dropout(x.flatten(1)))


def make_data(count, generator):
    labels = torch.randint(0, 4, (count,), generator=generator)
    images = torch.randn(count, 1, 12, 12, generator=generator)
    for quarter in range(4):
        row, column = divmod(quarter, 2)
        images[labels == quarter, :, row * 6 : row * 6 + 6, column * 6 : column * 6 + 6] += 1.0
    return TensorDataset((images - images.mean()) / images.std(), labels)


def train(args, model, loader, optimizer, epoch):
    model.train()
    for batch_idx, (data, target) in enumerate(loader):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data), target)
        loss.backward()
        optimizer.step()
        if batch_idx % args.log_interval == 0:
            print(f"epoch {epoch} [{batch_idx}/{len(loader)}] loss {loss.item():.4f}")


def test(model, loader):
    test_loss, correct = 0.0, 0
    with torch.no_grad():
        for data, target in loader:
            output = model(data)  # <- here
            test_loss += F.cross_entropy(output, target, reduction="sum").item()
            pred = output.argmax(dim=1, keepdim=True)
            correct += pred.eq(target.view_as(pred)).sum().item()
    print(f"test loss {test_loss / len(loader.dataset):.4f}, accuracy {correct / len(loader.dataset):.3f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--log-interval", type=int, default=5)
    args = parser.parse_args()

    torch.manual_seed(1)
    generator = torch.Generator().manual_seed(7)
    train_loader = DataLoader(make_data(320, generator), batch_size=args.batch_size, shuffle=True)
    test_loader = DataLoader(make_data(100, generator), batch_size=50)
    model = Net(8)
    optimizer = optim.Adam(model.parameters(), lr=args.lr)
    for epoch in range(1, args.epochs + 1):
        train(args, model, train_loader, optimizer, epoch)
        test(model, test_loader)


if __name__ == "__main__":
    main()
