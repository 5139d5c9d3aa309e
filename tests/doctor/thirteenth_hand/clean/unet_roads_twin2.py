# %% [markdown]
# # Roads from the air with a small U-Net
# Tiles are drawn: grey fields, brighter roads, a few confusing roofs.

# %%
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

random.seed(3)
np.random.seed(3)
torch.manual_seed(3)
SIZE = 32


# %%
def tile(rng):
    img = 0.4 + 0.08 * rng.standard_normal((SIZE, SIZE))
    mask = np.zeros((SIZE, SIZE))
    yy, xx = np.mgrid[:SIZE, :SIZE]
    for _ in range(rng.integers(1, 3)):
        angle, offset = rng.uniform(0, np.pi), rng.uniform(-8, 8)
        distance = np.abs((xx - 16) * np.sin(angle) - (yy - 16) * np.cos(angle) - offset)
        mask[distance < 1.6] = 1
    img[mask > 0] += 0.25
    for _ in range(4):
        y, x = rng.integers(0, SIZE - 4, 2)
        img[y : y + 4, x : x + 4] += 0.25
    return img.astype(np.float32), mask.astype(np.float32)


def tiles(n, seed):
    rng = np.random.default_rng(seed)
    pairs = [tile(rng) for _ in range(n)]
    return np.stack([a for a, _ in pairs])[:, None], np.stack([b for _, b in pairs])[:, None]


class RoadDataset(Dataset):
    def __init__(self, images, masks, train):
        self.images, self.masks, self.train = images, masks, train

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        image, mask = torch.from_numpy(self.images[i]), torch.from_numpy(self.masks[i])
        if self.train:
            image, mask = self.augment(image, mask)
        return (image - 0.45) / 0.15, mask

    def augment(self, image, mask):
        if random.random() < 0.5:
            image, mask = image.flip(-1), mask.flip(-1)
        if random.random() < 0.5:
            image, mask = image.flip(-2), mask.flip(-2)
        image = image * random.uniform(0.9, 1.1) + random.uniform(-0.05, 0.05)  # light is no matter of the mask
        return image, mask


# %%
class DoubleConv(nn.Sequential):
    def __init__(self, a, b):
        super().__init__(
            nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(inplace=True),
            nn.Conv2d(b, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(inplace=True),
        )


class UNet(nn.Module):
    def __init__(self, c=8):
        super().__init__()
        self.d1, self.d2, self.mid = DoubleConv(1, c), DoubleConv(c, 2 * c), DoubleConv(2 * c, 4 * c)
        self.u2, self.u1 = nn.ConvTranspose2d(4 * c, 2 * c, 2, 2), nn.ConvTranspose2d(2 * c, c, 2, 2)
        self.c2, self.c1 = DoubleConv(4 * c, 2 * c), DoubleConv(2 * c, c)
        self.head = nn.Conv2d(c, 1, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(F.max_pool2d(a, 2))
        m = self.mid(F.max_pool2d(b, 2))
        x = self.c2(torch.cat([self.u2(m), b], 1))
        x = self.c1(torch.cat([self.u1(x), a], 1))
        x = self.head(x)
        return x


def dice_loss(logits, target, eps=1.0):
    p = torch.sigmoid(logits).flatten(1)
    t = target.flatten(1)
    return (1 - (2 * (p * t).sum(1) + eps) / (p.sum(1) + t.sum(1) + eps)).mean()


def criterion(logits, target):
    return F.binary_cross_entropy_with_logits(logits, target) + dice_loss(logits, target)


# %%
@torch.no_grad()
def evaluate(net, loader):
    net.eval()
    loss, n = 0.0, 0
    inter, total = 0.0, 0.0
    for image, mask in loader:
        out = net(image)
        loss += criterion(out, mask).item() * len(image)
        n += len(image)
        pred = (torch.sigmoid(out) > 0.5).float()
        inter += (pred * mask).sum().item()
        total += pred.sum().item() + mask.sum().item()
    net.train()
    return loss / n, 2 * inter / total


train_ds = RoadDataset(*tiles(240, 1), train=True)
val_ds = RoadDataset(*tiles(80, 2), train=False)
train_loader = DataLoader(train_ds, batch_size=16, shuffle=True)
val_loader = DataLoader(val_ds, batch_size=16)
net = UNet()
optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "min", factor=0.3, patience=2)

# %%
best = float("inf")
for epoch in range(6):
    for image, mask in train_loader:
        loss = criterion(net(image), mask)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    val_loss, dice = evaluate(net, val_loader)
    scheduler.step(val_loss)
    if val_loss < best:
        best = val_loss
        torch.save(net.state_dict(), "unet_roads.pth")
    print(f"epoch {epoch}  train {loss.item():.3f}  val {val_loss:.3f}  dice {dice:.3f}")
