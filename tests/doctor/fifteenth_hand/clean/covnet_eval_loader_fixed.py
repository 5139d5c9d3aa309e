import argparse
import os
import tempfile

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler


class CTDataset(Dataset):
    """Volumes of a few slices; the finding is visible in some of them."""

    def __init__(self, n_cases, seed):
        rng = np.random.RandomState(seed)
        self.volumes, self.labels = [], []
        yy, xx = np.mgrid[0:20, 0:20]
        for _ in range(n_cases):
            label = int(rng.choice(3, p=[0.5, 0.3, 0.2]))
            vol = rng.randn(rng.randint(3, 6), 1, 20, 20).astype(np.float32)
            for s in range(vol.shape[0]):
                if label and rng.rand() < 0.7:
                    cy, cx = rng.randint(4, 16, 2)
                    r = np.sqrt((yy - cy) ** 2 + (xx - cx) ** 2)
                    mark = (r < 3) if label == 1 else ((r > 2) & (r < 4))
                    vol[s, 0] += 1.3 * mark
            self.volumes.append(vol)
            self.labels.append(label)

    def weights(self):
        counts = np.bincount(self.labels, minlength=3)
        return torch.DoubleTensor([1.0 / counts[y] for y in self.labels])

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return torch.from_numpy(self.volumes[i]), self.labels[i]


class COVNet(nn.Module):
    def __init__(self, n_classes):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(24, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten())
        self.classifier = nn.Linear(32, n_classes)

    def forward(self, x):
        pooled = self.features(x.squeeze(0))
        return self.classifier(pooled.max(dim=0, keepdim=True)[0])


def train_model(model, loader, optimizer):
    model.train()
    losses, correct = [], 0
    for image, label in loader:
        optimizer.zero_grad()
        prediction = model(image)
        loss = F.cross_entropy(prediction, label)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        correct += int(prediction.argmax(1) == label)
    return np.mean(losses), correct / len(losses)


def evaluate_model(model, loader):
    model.eval()
    losses, correct = [], 0
    for image, label in loader:
        prediction = model(image)
        losses.append(F.cross_entropy(prediction, label).item())
        correct += int(prediction.argmax(1) == label)
    return np.mean(losses), correct / len(losses)


def main(args):
    torch.manual_seed(args.seed)
    train_set, val_set, test_set = CTDataset(150, 1), CTDataset(80, 2), CTDataset(80, 3)
    sampler = WeightedRandomSampler(train_set.weights(), len(train_set))
    train_loader = DataLoader(train_set, batch_size=1, sampler=sampler)
    val_loader = DataLoader(val_set, batch_size=1, shuffle=False)
    test_loader = DataLoader(test_set, batch_size=1, shuffle=False)

    model = COVNet(n_classes=3)
    optimizer = optim.Adam(model.parameters(), lr=args.lr, weight_decay=1e-4)
    best_val_acc, best_path = 0.0, os.path.join(tempfile.mkdtemp(), "best.pth")
    for epoch in range(args.epochs):
        train_loss, train_acc = train_model(model, train_loader, optimizer)
        with torch.no_grad():
            val_loss, val_acc = evaluate_model(model, val_loader)
        print(f"epoch {epoch} train loss {train_loss:.3f} acc {train_acc:.3f} | val loss {val_loss:.3f} acc {val_acc:.3f}")
        if val_acc > best_val_acc:
            best_val_acc = val_acc
            torch.save(model.state_dict(), best_path)
    model.load_state_dict(torch.load(best_path))
    with torch.no_grad():
        print("test loss %.3f acc %.3f" % evaluate_model(model, test_loader))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seed", type=int, default=7)
    main(parser.parse_args())
