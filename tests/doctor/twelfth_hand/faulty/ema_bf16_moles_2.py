import argparse
from copy import deepcopy

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class ModelEma:
    """Keep a moving average of everything in the model state_dict (parameters and buffers), as in timm."""

    def __init__(self, model, decay=0.9):
        self.module = deepcopy(model).eval()
        self.decay = decay
        for p in self.module.parameters():
            p.requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        for ema_v, model_v in zip(self.module.state_dict().values(), model.state_dict().values()):
            if ema_v.dtype.is_floating_point:
                ema_v.mul_(self.decay).add_(model_v, alpha=1.0 - self.decay)
            else:
                ema_v.copy_(model_v)


class ResBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)
        self.conv2, self.bn2 = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(x + self.bn2(self.conv2(out)))


class MoleNet(nn.Module):
    def __init__(self, width=16, n_classes=3):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.blocks = nn.Sequential(ResBlock(width), nn.MaxPool2d(2), ResBlock(width))
        self.fc = nn.Linear(width, n_classes)

    def forward(self, x):
        return self.fc(self.blocks(self.stem(x)).mean((2, 3)))


def synth(n, seed):
    """round, oval or two-coloured spots on skin"""
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 3
    u = torch.linspace(-1, 1, 24)
    yy, xx = torch.meshgrid(u, u, indexing="ij")
    cx, cy = 0.3 * torch.randn(2, n, 1, 1, generator=g)
    stretch = torch.where(y == 1, 2.2, 1.0)[:, None, None]
    r = ((xx - cx) ** 2 * stretch + (yy - cy) ** 2 / stretch).sqrt()
    spot = torch.sigmoid((0.45 - r) * 14)
    img = torch.stack([0.8 - 0.5 * spot, 0.6 - 0.4 * spot, 0.5 - 0.3 * spot], 1)
    two = (y == 2)[:, None, None] & (xx > cx)
    img[:, 2] = torch.where(two, img[:, 2] + 0.25 * spot, img[:, 2])
    img = img + 0.3 * torch.randn(img.shape, generator=g)
    mean, std = torch.tensor([0.72, 0.54, 0.46]), torch.tensor([0.2, 0.18, 0.16])
    return TensorDataset((img - mean[:, None, None]) / std[:, None, None], y)


@torch.inference_mode()
def validate(model, loader, amp):
    model.eval()
    top1, n = 0, 0
    for x, y in loader:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=amp):
            logits = model(x)
        top1 += (logits.float().argmax(1) == y).sum().item()
        n += len(y)
    return 100.0 * top1 / n


def main(argv=None):
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", default=5, type=int)
    ap.add_argument("--lr", default=0.05, type=float)
    ap.add_argument("--no-amp", dest="amp", action="store_false")
    ap.add_argument("--ema-decay", default=0.9999, type=float)
    a = ap.parse_args(argv)
    torch.manual_seed(0)

    train_dl = DataLoader(synth(720, 1), batch_size=36, shuffle=True)
    val_dl = DataLoader(synth(240, 2), batch_size=80)
    model = MoleNet()
    ema = ModelEma(model, a.ema_decay)
    decay = [p for p in model.parameters() if p.ndim > 1]
    no_decay = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.SGD(
        [{"params": decay, "weight_decay": 5e-4}, {"params": no_decay, "weight_decay": 0.0}], lr=a.lr, momentum=0.9, nesterov=True
    )
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=a.epochs)

    for epoch in range(a.epochs):
        model.train()
        loss_m, n = 0.0, 0
        for x, y in train_dl:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=a.amp):
                loss = F.cross_entropy(model(x), y, label_smoothing=0.05)
            loss.backward()
            optimizer.step()
            ema.update(model)
            loss_m, n = loss_m + loss.item() * len(y), n + len(y)
        scheduler.step()
        print(f"epoch {epoch} loss {loss_m / n:.4f} top1 {validate(model, val_dl, a.amp):.1f} ema top1 {validate(ema.module, val_dl, a.amp):.1f}")
    torch.save({"state_dict": model.state_dict(), "state_dict_ema": ema.module.state_dict()}, "moles.pth")


if __name__ == "__main__":
    main()
