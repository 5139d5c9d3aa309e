# cat / dog style binary classification with a small convnet
import random

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(2)
random.seed(2)

SIZE = 32


class RandomVerticalFlip:
    def __call__(self, img):
        return img.flip(-2) if random.random() < 0.5 else img


class RandomCrop:
    def __init__(self, size):
        self.size = size

    def __call__(self, img):
        top = random.randint(0, img.shape[-2] - self.size)
        left = random.randint(0, img.shape[-1] - self.size)
        return img[:, top:top + self.size, left:left + self.size]


class ColorJitter:
    def __init__(self, brightness):
        self.brightness = brightness

    def __call__(self, img):
        return (img * random.uniform(1 - self.brightness, 1 + self.brightness)).clamp(0, 1)


class Normalize:
    def __call__(self, img):
        return (img - 0.5) / 0.5


class Compose:
    def __init__(self, steps):
        self.steps = steps

    def __call__(self, img):
        for step in self.steps:
            img = step(img)
        return img


class CatDog(Dataset):
    def __init__(self, n, seed, transform):
        g = torch.Generator().manual_seed(seed)
        self.transform = transform
        self.labels = torch.randint(0, 2, (n,), generator=g)
        self.images = torch.rand(n, 3, SIZE, SIZE, generator=g) * 0.6 + 0.2
        stripes = (torch.arange(8) % 4 < 2).float()
        for i, label in enumerate(self.labels):
            r, c = torch.randint(0, SIZE - 8, (2,), generator=g).tolist()
            patch = stripes.view(8, 1).expand(8, 8) if label else stripes.view(1, 8).expand(8, 8)
            self.images[i, :, r:r + 8, c:c + 8] *= 0.5
            self.images[i, :, r:r + 8, c:c + 8] += 0.5 * patch

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.transform(self.images[i]), self.labels[i]


train_tf = Compose([RandomVerticalFlip(), RandomCrop(6), ColorJitter(brightness=0.8), Normalize()])
test_tf = Compose([Normalize()])
train_loader = DataLoader(CatDog(1000, 0, train_tf), batch_size=32, shuffle=True)
test_set = CatDog(300, 1, test_tf)
test_loader = DataLoader(test_set, batch_size=100)

net = nn.Sequential(
    nn.Conv2d(3, 8, 5, padding=2), nn.BatchNorm2d(8), nn.ReLU(),
    nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
    nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(16, 2))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)

for epoch in range(4):
    net.train()
    losses = []
    for x, y in train_loader:
        optimizer.zero_grad()
        loss = criterion(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    net.eval()
    hits = 0
    with torch.no_grad():
        for x, y in test_loader:
            hits += (net(x).argmax(1) == y).sum().item()
    print("epoch %d  loss %.4f  test acc %.3f" % (epoch, sum(losses) / len(losses), hits / len(test_set)))
