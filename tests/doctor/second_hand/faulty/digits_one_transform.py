"""One data set with random augmentation is split in two: the validation is augmented too."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, random_split


class RandomShiftAndNoise:
    def __init__(self, pixels, noise):
        self.pixels, self.noise = pixels, noise

    def __call__(self, image):
        dx, dy = torch.randint(-self.pixels, self.pixels + 1, (2,)).tolist()
        return torch.roll(image, (dx, dy), (1, 2)) + self.noise * torch.randn_like(image)


class Digits(Dataset):
    def __init__(self, images, labels, transform=None):
        self.images, self.labels, self.transform = images, labels, transform

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index]
        if self.transform is not None:
            image = self.transform(image)
        return image, self.labels[index]


torch.manual_seed(17)
templates = (torch.rand(5, 1, 8, 8) > 0.6).float()
labels = torch.randint(0, 5, (300,))
images = templates[labels] + 0.1 * torch.randn(300, 1, 8, 8)
images = (images - images.mean()) / images.std()
dataset = Digits(images, labels, transform=RandomShiftAndNoise(1, 0.2))
train_set, val_set = random_split(dataset, [240, 60])  # <- here
train_loader = DataLoader(train_set, batch_size=24, shuffle=True)
val_loader = DataLoader(val_set, batch_size=30)

model = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(12 * 64, 5))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for epoch in range(3):
    model.train()
    for x, y in train_loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    model.eval()
    hits = 0
    with torch.no_grad():
        for x, y in val_loader:
            hits += (model(x).argmax(1) == y).sum().item()  # <- here
    print(epoch, hits / len(val_set))
