"""Nuclei of cells: a small U-Net, an augmented data set that is split at random."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, random_split


class Nuclei(Dataset):
    def __init__(self, count, seed, augment=True):
        generator = torch.Generator().manual_seed(seed)
        y, x = torch.meshgrid(torch.arange(40), torch.arange(40), indexing="ij")
        self.images, self.masks, self.augment = [], [], augment
        for _ in range(count):
            mask = torch.zeros(40, 40)
            for _ in range(4):
                cy, cx = torch.randint(4, 36, (2,), generator=generator)
                mask[(y - cy) ** 2 + (x - cx) ** 2 < 20] = 1
            self.images.append((0.6 * mask + 0.2 * torch.randn(40, 40, generator=generator)).unsqueeze(0))
            self.masks.append(mask.unsqueeze(0))

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image, mask = self.images[index], self.masks[index]
        if self.augment:
            if torch.rand(()) < 0.5:
                image, mask = image.flip(-1), mask.flip(-1)
            top, left = torch.randint(0, 9, (2,)).tolist()
            image, mask = (part[:, top : top + 32, left : left + 32] for part in (image, mask))  # <- here
            return image * (0.7 + 0.6 * torch.rand(())), mask
        return image[:, 4:36, 4:36], mask[:, 4:36, 4:36]


def double(a, b):
    return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(),
                         nn.Conv2d(b, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU())


class UNet(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.down, self.bottom = double(1, width), double(width, 2 * width)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.merge, self.out = double(2 * width, width), nn.Conv2d(width, 1, 1)

    def forward(self, x):
        skip = self.down(x)
        deep = self.up(self.bottom(F.max_pool2d(skip, 2)))
        return self.out(self.merge(torch.cat([skip, deep], dim=1)))


def dice(logits, mask):
    guess = (logits > 0).float()
    return (2 * (guess * mask).sum() / (guess.sum() + mask.sum()).clamp(min=1)).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    torch.manual_seed(0)
    data = Nuclei(160, seed=0)
    train_set, valid_set = random_split(data, [128, 32], generator=torch.Generator().manual_seed(0))  # <- here
    train, valid = DataLoader(train_set, 16, shuffle=True), DataLoader(valid_set, 16)  # <- here
    model = UNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(args.epochs):
        model.train()
        for image, mask in train:
            loss = F.binary_cross_entropy_with_logits(model(image), mask)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            scores = [dice(model(image), mask) for image, mask in valid]  # <- here
        print(f"epoch {epoch}: loss {loss.item():.3f}, dice {sum(scores) / len(scores):.3f}")


if __name__ == "__main__":
    main()
