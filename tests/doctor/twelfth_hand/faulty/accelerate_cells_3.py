#!/usr/bin/env python
"""Segmentation of cells on noisy plates with Accelerate and gradient accumulation."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset

VOID = 255  # the rim of a cell is not labelled


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--train-plates", type=int, default=192)
    p.add_argument("--val-plates", type=int, default=48)
    p.add_argument("--size", type=int, default=32)
    p.add_argument("--bs", type=int, default=8)
    p.add_argument("--accum", type=int, default=2)
    p.add_argument("--lr", type=float, default=4e-3)
    p.add_argument("--epochs", type=int, default=4)
    return p.parse_args()


class Plates(Dataset):
    """0 background, 1 pale cell, 2 dark cell; masks come at twice the size, as from the microscope."""

    def __init__(self, n, size, seed):
        self.n, self.size, self.seed = n, size, seed

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed * 10_000 + i)
        big = 2 * self.size
        yy, xx = torch.meshgrid(torch.arange(big), torch.arange(big), indexing="ij")
        image, mask = torch.full((big, big), 0.5), torch.zeros(big, big, dtype=torch.long)
        for _ in range(4):
            cls = int(torch.randint(1, 3, (), generator=g))
            cy, cx = torch.randint(8, big - 8, (2,), generator=g)
            r = int(torch.randint(6, 11, (), generator=g))
            d = ((yy - cy) ** 2 + (xx - cx) ** 2).float().sqrt()
            image[d <= r] = 0.8 if cls == 1 else 0.2
            mask[d <= r] = cls
            mask[(d > r) & (d <= r + 2)] = VOID
        image = image + 0.15 * torch.randn(big, big, generator=g)
        return self.resize(image, mask)

    def resize(self, image, mask):
        image = F.interpolate(image[None, None], size=(self.size, self.size), mode="bilinear", antialias=True)[0]
        mask = F.interpolate(mask[None, None].float(), size=(self.size, self.size), mode="nearest")[0, 0]
        return (image - 0.5) / 0.25, mask.long()


class SegNet(nn.Module):
    def __init__(self, width=12, classes=3):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1), nn.ReLU())
        self.mid = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU())
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.head = nn.Sequential(nn.Conv2d(2 * width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, classes, 1))

    def forward(self, x):
        skip = self.down(x)
        return self.head(torch.cat([skip, self.up(self.mid(skip))], dim=1))


def confusion(pred, target, classes=3):
    keep = target != VOID
    idx = target[keep] * classes + pred[keep]
    return torch.bincount(idx, minlength=classes**2).view(classes, classes)


def mean_iou(cm):
    inter = cm.diag().float()
    union = cm.sum(0) + cm.sum(1) - cm.diag()
    return (inter / union.clamp(min=1)).mean().item()


def main():
    args = parse_args()
    set_seed(17)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=args.accum)
    train_dl = DataLoader(Plates(args.train_plates, args.size, 1), batch_size=args.bs, shuffle=True)
    val_dl = DataLoader(Plates(args.val_plates, args.size, 2), batch_size=16)
    model = SegNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=args.lr, total_steps=args.epochs * len(train_dl) // args.accum
    )
    model, optimizer, train_dl, val_dl, scheduler = accelerator.prepare(model, optimizer, train_dl, val_dl, scheduler)

    for epoch in range(args.epochs):
        model.train()
        losses = []
        for image, mask in train_dl:
            with accelerator.accumulate(model):
                logits = model(image)
                loss = F.cross_entropy(logits, mask, ignore_index=VOID)
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            losses.append(loss.detach())
        model.eval()
        ious = []
        for image, mask in val_dl:
            with torch.no_grad():
                pred = model(image).argmax(dim=1)
            pred, mask = accelerator.gather_for_metrics((pred, mask))
            ious.append(mean_iou(confusion(pred, mask)))
        accelerator.print(f"epoch {epoch}: loss {torch.stack(losses).mean().item():.3f} mIoU {sum(ious) / len(ious):.3f}")


if __name__ == "__main__":
    main()
