"""Segmentation of street scenes with an atrous head; void pixels are ignored; poly schedule as in DeepLab."""
import argparse

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

CLASSES, VOID = 4, 255


class Streets(Dataset):
    """Sky above, road below, houses at the sides, a car; a strip at the bottom is the bonnet and void."""

    def __init__(self, count, seed):
        gen = torch.Generator().manual_seed(seed)
        colour = torch.tensor([[0.3, 0.5, 0.9], [0.4, 0.4, 0.4], [0.6, 0.4, 0.2], [0.8, 0.1, 0.1]])
        self.images, self.masks = [], []
        for _ in range(count):
            horizon, house, car = (torch.randint(a, b, (1,), generator=gen).item() for a, b in ((8, 14), (4, 10), (8, 18)))
            mask = torch.zeros(24, 32, dtype=torch.long)
            mask[horizon:] = 1
            mask[4 : horizon + 4, :house] = 2
            mask[horizon : horizon + 6, car : car + 8] = 3
            image = colour[mask].permute(2, 0, 1) + 0.25 * torch.randn(3, 24, 32, generator=gen)
            mask[-2:] = VOID
            self.images.append((image - 0.45) / 0.3)
            self.masks.append(mask)

    def __len__(self):
        return len(self.masks)

    def __getitem__(self, i):
        return self.images[i], self.masks[i]


class ASPP(nn.Module):
    def __init__(self, cin, cout, rates=(1, 2, 4)):
        super().__init__()
        self.branches = nn.ModuleList(
            nn.Sequential(nn.Conv2d(cin, cout, 3, padding=r, dilation=r, bias=False), nn.BatchNorm2d(cout), nn.ReLU())
            for r in rates
        )
        self.project = nn.Sequential(nn.Conv2d(cout * len(rates), cout, 1, bias=False), nn.BatchNorm2d(cout), nn.ReLU())

    def forward(self, x):
        return self.project(torch.cat([branch(x) for branch in self.branches], dim=1))


class DeepLab(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
        )
        self.aspp = ASPP(32, 32)
        self.classifier = nn.Conv2d(32, CLASSES, 1)

    def forward(self, x):
        y = self.classifier(self.aspp(self.backbone(x)))
        return F.interpolate(y, size=x.shape[-2:], mode="bilinear", align_corners=False)


def segmentation_loss(logits, target):
    logits = logits.flatten(2).transpose(1, 2).reshape(-1, CLASSES)
    return F.cross_entropy(logits, target.reshape(-1), ignore_index=VOID)


@torch.no_grad()
def mean_iou(model, loader):
    model.eval()
    confusion = torch.zeros(CLASSES, CLASSES)
    for image, mask in loader:
        predicted = model(image).argmax(1)
        keep = mask != VOID
        index = mask[keep] * CLASSES + predicted[keep]
        confusion += torch.bincount(index, minlength=CLASSES**2).view(CLASSES, CLASSES)
    union = confusion.sum(0) + confusion.sum(1) - confusion.diag()
    return (confusion.diag() / union.clamp(min=1)).mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.02)
    args = parser.parse_args()
    torch.manual_seed(17)
    train_set, val_set = Streets(160, 1), Streets(40, 2)
    train_loader = DataLoader(train_set, args.batch_size, shuffle=True, drop_last=True)
    val_loader = DataLoader(val_set, args.batch_size)
    model = DeepLab()
    new = list(model.aspp.parameters()) + list(model.classifier.parameters())
    optimizer = torch.optim.SGD(
        [{"params": model.backbone.parameters(), "lr": args.lr}, {"params": new, "lr": 2 * args.lr}],
        momentum=0.9,
        weight_decay=1e-4,
    )
    total_iters = args.epochs * len(train_loader)
    scheduler = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=total_iters, power=0.9)
    for epoch in range(args.epochs):
        model.train()
        for image, mask in train_loader:
            loss = segmentation_loss(model(image), mask)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
        print(f"epoch {epoch} loss {loss.item():.3f} lr {scheduler.get_last_lr()[0]:.5f} mIoU {mean_iou(model, val_loader):.3f}")


if __name__ == "__main__":
    main()
