"""Seeds on a tray: a small residual net, in the manner of the ImageNet example (argparse, meters, top-k)."""
import argparse
import random
import time

import torch
import torch.nn as nn
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser(description="PyTorch seed classification")
parser.add_argument("--epochs", default=4, type=int)
parser.add_argument("-b", "--batch-size", default=32, type=int)
parser.add_argument("--lr", "--learning-rate", default=0.05, type=float)
parser.add_argument("--momentum", default=0.9, type=float)
parser.add_argument("--wd", "--weight-decay", default=1e-4, type=float, dest="weight_decay")
parser.add_argument("-p", "--print-freq", default=10, type=int)
parser.add_argument("--seed", default=11, type=int)


class BasicBlock(nn.Module):
    def __init__(self, inplanes, planes, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.down = None
        if stride != 1 or inplanes != planes:
            self.down = nn.Sequential(nn.Conv2d(inplanes, planes, 1, stride, bias=False), nn.BatchNorm2d(planes))

    def forward(self, x):
        identity = x if self.down is None else self.down(x)
        out = torch.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return torch.relu(out + identity)


class SeedNet(nn.Module):
    def __init__(self, num_classes=6):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 12, 3, 2, 1, bias=False), nn.BatchNorm2d(12), nn.ReLU())
        self.layers = nn.Sequential(BasicBlock(12, 12), BasicBlock(12, 24, 2), BasicBlock(24, 48, 2))
        self.drop = nn.Dropout(0.3)
        self.fc = nn.Linear(48, num_classes)

    def forward(self, x):
        x = self.layers(self.stem(x)).mean(dim=(2, 3))
        return self.fc(self.drop(x))


def seeds(count, generator):
    labels = torch.randint(0, 6, (count,), generator=generator)
    yy, xx = torch.meshgrid(torch.linspace(-1, 1, 20), torch.linspace(-1, 1, 20), indexing="ij")
    images = torch.randn(count, 3, 20, 20, generator=generator) * 0.25
    for i, label in enumerate(labels.tolist()):
        cx, cy = (torch.rand(2, generator=generator) - 0.5).tolist()
        wide = 1.0 + 0.7 * (label % 3)
        spot = torch.exp(-(((xx - cx) / wide) ** 2 + ((yy - cy) * wide) ** 2) * 9)
        images[i, label // 3] += 2.0 * spot
    return TensorDataset(images, labels)


class AverageMeter:
    def __init__(self, name):
        self.name, self.sum, self.count, self.val = name, 0.0, 0, 0.0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n

    @property
    def avg(self):
        return self.sum / max(1, self.count)

    def __str__(self):
        return f"{self.name} {self.val:.3f} ({self.avg:.3f})"


def accuracy(output, target, topk=(1,)):
    with torch.no_grad():
        _, pred = output.topk(max(topk), 1, True, True)
        correct = pred.t().eq(target.view(1, -1))
        return [correct[:k].reshape(-1).float().sum().item() * 100.0 / target.size(0) for k in topk]


def train(train_loader, model, criterion, optimizer, scheduler, epoch, args):
    losses, top1 = AverageMeter("Loss"), AverageMeter("Acc@1")
    model.train()
    for i, (images, target) in enumerate(train_loader):
        output = model(images)
        loss = criterion(output, target)
        acc1, _ = accuracy(output, target, topk=(1, 2))
        losses.update(loss.item(), images.size(0))
        top1.update(acc1, images.size(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if i % args.print_freq == 0:
            print(f"Epoch [{epoch}][{i}/{len(train_loader)}] {losses} {top1} lr {scheduler.get_last_lr()[0]:.4f}")


def validate(val_loader, model, criterion):
    losses, top1 = AverageMeter("Loss"), AverageMeter("Acc@1")
    model.eval()
    with torch.no_grad():
        for images, target in val_loader:
            output = model(images)
            losses.update(criterion(output, target).item(), images.size(0))
            top1.update(accuracy(output, target)[0], images.size(0))
    print(f" * Loss {losses.avg:.3f} Acc@1 {top1.avg:.2f}")
    return top1.avg


def main():
    args = parser.parse_args()
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    g = torch.Generator().manual_seed(args.seed)
    train_loader = DataLoader(seeds(640, g), batch_size=args.batch_size, shuffle=True)
    val_loader = DataLoader(seeds(120, g), batch_size=12)
    model = SeedNet()
    criterion = nn.CrossEntropyLoss()
    optimizer = optim.SGD(model.parameters(), args.lr, momentum=args.momentum, weight_decay=args.weight_decay)
    scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.epochs)
    best_acc1, start = 0.0, time.time()
    for epoch in range(args.epochs):
        train(train_loader, model, criterion, optimizer, scheduler, epoch, args)
        best_acc1 = max(best_acc1, validate(val_loader, model, criterion))
    print(f"best {best_acc1:.2f} in {time.time() - start:.0f}s")


if __name__ == "__main__":
    main()
