"""Flowers, five kinds, from arrays of bytes as an image library gives them."""
import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def photograph(count, seed, size=24, kinds=5):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, kinds, count)
    palette = np.array([[230, 60, 70], [240, 220, 60], [120, 60, 200], [250, 250, 240], [250, 140, 40]])
    y, x = np.mgrid[0:size, 0:size] - size / 2
    images = np.empty((count, size, size, 3), dtype=np.uint8)
    for row, label in enumerate(labels):
        petals = np.cos((3 + label) * np.arctan2(y, x)) * 3 + 7 > np.hypot(y, x)
        picture = np.where(petals[..., None], palette[rng.integers(0, kinds)], [40, 120, 50])
        images[row] = np.clip(picture + rng.normal(0, 25, picture.shape), 0, 255)
    return images, labels


class Normalize:
    def __init__(self, mean, std):
        self.mean = torch.tensor(mean).view(3, 1, 1)
        self.std = torch.tensor(std).view(3, 1, 1)

    def __call__(self, image):
        return (image - self.mean) / self.std


class Flowers(Dataset):
    def __init__(self, images, labels, transform):
        self.images, self.labels, self.transform = images, labels, transform

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = torch.from_numpy(self.images[index]).permute(2, 0, 1).float() / 255
        return self.transform(image), int(self.labels[index])


class Net(nn.Module):
    def __init__(self, kinds=5):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.dropout = nn.Dropout(0.25)
        self.fc1 = nn.Linear(32 * 36, 64)
        self.fc2 = nn.Linear(64, kinds)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = self.dropout(F.relu(self.fc1(x.flatten(1))))
        return self.fc2(x)


def train(model, loader, optimizer, epoch):
    model.train()
    for step, (images, labels) in enumerate(loader):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(f"epoch {epoch} step {step}: {loss.item():.3f}")


@torch.no_grad()
def test(model, loader):
    model.eval()
    hits = sum((model(images).argmax(1) == labels).sum().item() for images, labels in loader)
    print(f"accuracy {hits / len(loader.dataset):.3f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.02)
    args = parser.parse_args()
    torch.manual_seed(1)
    transform = Normalize(MEAN, STD)
    train_set = Flowers(*photograph(480, seed=1), transform)
    test_set = Flowers(*photograph(160, seed=2), transform)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    for epoch in range(args.epochs):
        train(model, DataLoader(train_set, 32, shuffle=True), optimizer, epoch)
        test(model, DataLoader(test_set, 80))


if __name__ == "__main__":
    main()
