import copy

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, random_split

from xrays_multi_twin_parts.transforms import Compose, Normalize, RandomCrop, RandomHorizontalFlip, ToTensor
from xrays_multi_twin_parts.xrays import XrayDataset

MEAN, STD = 0.47, 0.25
FINDINGS = ("nodule", "effusion", "mass")


def transforms(training):
    steps = [RandomCrop(24, padding=3), RandomHorizontalFlip()] if training else []
    return Compose([*steps, ToTensor(), Normalize(MEAN, STD)])


def build_model():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveMaxPool2d(1),
        nn.Flatten(), nn.Dropout(0.2), nn.Linear(32, len(FINDINGS)),
    )


def epoch_train(model, loader, optimizer, loss):
    model.train()
    seen = []
    for image, label in loader:
        value = loss(model(image), label)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        seen.append(value.item())
    return np.mean(seen)


def epoch_val(model, loader, loss):
    model.eval()
    total, hits, count = 0.0, 0, 0
    with torch.no_grad():
        for image, label in loader:
            output = model(image)
            total += loss(output, label).item() * len(label)
            hits += ((output > 0) == label.bool()).all(dim=1).sum().item()
            count += len(label)
    return total / count, hits / count


def main():
    torch.manual_seed(21)
    np.random.seed(21)
    full = XrayDataset(600, transform=transforms(training=True))
    train_set, val_set = random_split(full, [480, 120])
    val_set.dataset = copy.copy(full)
    val_set.dataset.transform = transforms(training=False)
    train_loader = DataLoader(train_set, batch_size=24, shuffle=True)
    val_loader = DataLoader(val_set, batch_size=60)
    model = build_model()
    loss = nn.BCEWithLogitsLoss(pos_weight=torch.tensor([2.0, 2.0, 2.0]))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(7):
        train_loss = epoch_train(model, train_loader, optimizer, loss)
        val_loss, exact = epoch_val(model, val_loader, loss)
        print(f"Epoch [{epoch + 1}] train {train_loss:.4f} val {val_loss:.4f}, all findings right {exact:.3f}")


if __name__ == "__main__":
    main()
