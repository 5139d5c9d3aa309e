"""Roads from the air: a U-Net with binary masks, argparse and functions, after the milesial repository."""
import argparse
import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import optim
from torch.utils.data import DataLoader, Dataset


def get_args():
    parser = argparse.ArgumentParser(description="Train the UNet on images and target masks")
    parser.add_argument("--epochs", "-e", type=int, default=5)
    parser.add_argument("--batch-size", "-b", dest="batch_size", type=int, default=8)
    parser.add_argument("--learning-rate", "-l", type=float, default=4e-3, dest="lr")
    parser.add_argument("--gradient-clipping", type=float, default=1.0)
    return parser.parse_args()


class RoadDataset(Dataset):
    def __init__(self, count, seed, augment=False):
        g = torch.Generator().manual_seed(seed)
        self.augment, self.images, self.masks = augment, [], []
        yy, xx = torch.meshgrid(torch.linspace(-1, 1, 32), torch.linspace(-1, 1, 32), indexing="ij")
        for _ in range(count):
            mask = torch.zeros(32, 32, dtype=torch.bool)
            for _ in range(2):
                a, b = torch.rand(2, generator=g).tolist()
                bend = 0.3 * torch.sin(3 * xx + 6 * b)
                mask |= ((2 * a - 1) * xx + bend - yy + b - 0.5).abs() < 0.12
            field = torch.rand(3, 1, 1, generator=g) * 0.4
            image = field + 0.25 * torch.rand(3, 32, 32, generator=g) + 0.35 * mask
            self.images.append(image)
            self.masks.append(mask.float())

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        image, mask = self.images[i], self.masks[i]
        if self.augment:
            if random.random() < 0.5:
                image = image.flip(-1)
            if random.random() < 0.5:
                image, mask = image.flip(-2), mask.flip(-2)
        return {"image": image, "mask": mask}


class DoubleConv(nn.Sequential):
    def __init__(self, a, b):
        super().__init__(
            nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True),
            nn.Conv2d(b, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True),
        )


class UNet(nn.Module):
    def __init__(self, n_channels=3, n_classes=1, width=10):
        super().__init__()
        self.inc, self.down1, self.down2 = DoubleConv(n_channels, width), DoubleConv(width, 2 * width), DoubleConv(2 * width, 4 * width)
        self.up1, self.up2 = DoubleConv(6 * width, 2 * width), DoubleConv(3 * width, width)
        self.outc = nn.Conv2d(width, n_classes, 1)

    def forward(self, x):
        x1 = self.inc(x)
        x2 = self.down1(F.max_pool2d(x1, 2))
        x3 = self.down2(F.max_pool2d(x2, 2))
        x = self.up1(torch.cat([x2, F.interpolate(x3, scale_factor=2)], dim=1))
        x = self.up2(torch.cat([x1, F.interpolate(x, scale_factor=2)], dim=1))
        return self.outc(x)


def dice_coeff(pred, target, epsilon=1e-6):
    inter = 2 * (pred * target).sum(dim=(-1, -2))
    total = pred.sum(dim=(-1, -2)) + target.sum(dim=(-1, -2))
    return ((inter + epsilon) / (total + epsilon)).mean()


@torch.inference_mode()
def evaluate(net, loader):
    net.eval()
    score = 0.0
    for batch in loader:
        pred = (torch.sigmoid(net(batch["image"]).squeeze(1)) > 0.5).float()
        score += dice_coeff(pred, batch["mask"]).item() * len(pred)
    net.train()
    return score / len(loader.dataset)


def train_model(model, args):
    train_loader = DataLoader(RoadDataset(240, 1, augment=True), shuffle=True, batch_size=args.batch_size)
    val_loader = DataLoader(RoadDataset(60, 2), batch_size=args.batch_size)
    optimizer = optim.AdamW(model.parameters(), lr=args.lr, weight_decay=1e-4)
    scheduler = optim.lr_scheduler.OneCycleLR(optimizer, max_lr=args.lr, total_steps=args.epochs * len(train_loader))
    criterion = nn.BCEWithLogitsLoss()
    for epoch in range(1, args.epochs + 1):
        model.train()
        epoch_loss = 0
        for batch in train_loader:
            images, true_masks = batch["image"], batch["mask"]
            masks_pred = model(images).squeeze(1)
            loss = criterion(masks_pred, true_masks)
            loss += 1 - dice_coeff(torch.sigmoid(masks_pred), true_masks)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.gradient_clipping)
            optimizer.step()
            scheduler.step()
            epoch_loss += loss.item()
        print(f"epoch {epoch} loss {epoch_loss / len(train_loader):.4f} validation Dice {evaluate(model, val_loader):.4f}")


if __name__ == "__main__":
    random.seed(0)
    torch.manual_seed(0)
    train_model(UNet(), get_args())
