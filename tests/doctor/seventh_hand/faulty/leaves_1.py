"""Species of leaves from measured shapes: a search for the rate first, then the training."""
import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from leaves_1_parts.finder import LRFinder
from leaves_1_parts.utils import save_checkpoint, seed_everything


def measured(count, species=8, features=12):
    generator = torch.Generator().manual_seed(17)
    centres = 1.6 * torch.randn(species, features, generator=generator)
    labels = torch.randint(0, species, (count,), generator=generator)
    return centres[labels] + torch.randn(count, features, generator=generator), labels


def build():
    return nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))


def accuracy(model, features, labels):
    model.eval()
    with torch.no_grad():
        score = (model(features).argmax(1) == labels).float().mean().item()
    model.train()
    return score


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--find-lr", action=argparse.BooleanOptionalAction, default=True)
    args = parser.parse_args()
    seed_everything(3)
    features, labels = measured(960)
    train_loader = DataLoader(TensorDataset(features[:800], labels[:800]), batch_size=32, shuffle=True)
    model, criterion = build(), nn.CrossEntropyLoss()
    if args.find_lr:
        finder = LRFinder(model, torch.optim.SGD(model.parameters(), lr=1e-5), criterion)  # <- here
        finder.range_test(train_loader, end_lr=20.0, num_iter=40)  # <- here
        args.lr = min(args.lr, finder.suggestion())
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.epochs)
    best = 0.0
    for epoch in range(args.epochs):
        for x, y in train_loader:
            loss = criterion(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()
        score = accuracy(model, features[800:], labels[800:])
        print(f"epoch {epoch}: loss {loss.item():.3f}, accuracy {score:.1%}")
        if score > best:
            best = score
            save_checkpoint(model, optimizer, epoch)


if __name__ == "__main__":
    main()
