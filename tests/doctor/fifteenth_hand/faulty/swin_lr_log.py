import datetime
import math
import time

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

BASE_LR, WARMUP_LR, MIN_LR = 5e-4, 5e-7, 5e-6
EPOCHS, WARMUP_EPOCHS, BATCH_SIZE, PRINT_FREQ = 6, 1, 32, 12
WEIGHT_DECAY = 0.05


class WindowAttention(nn.Module):
    def __init__(self, dim, heads, window):
        super().__init__()
        self.window = window
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x, shift):
        B, H, W, C = x.shape
        y = torch.roll(self.norm1(x), (-shift, -shift), dims=(1, 2))
        y = y.view(B, H // self.window, self.window, W // self.window, self.window, C).permute(0, 1, 3, 2, 4, 5)
        y = y.reshape(-1, self.window ** 2, C)
        y = self.attn(y, y, y, need_weights=False)[0]
        y = y.view(B, H // self.window, W // self.window, self.window, self.window, C).permute(0, 1, 3, 2, 4, 5)
        x = x + torch.roll(y.reshape(B, H, W, C), (shift, shift), dims=(1, 2))
        return x + self.mlp(self.norm2(x))


class TinySwin(nn.Module):
    def __init__(self, dim=32, num_classes=5):
        super().__init__()
        self.patch_embed = nn.Conv2d(3, dim, 2, stride=2)
        self.pos = nn.Parameter(torch.randn(1, 8, 8, dim) * 0.02)
        self.blocks = nn.ModuleList([WindowAttention(dim, 4, 4) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, num_classes)

    def forward(self, x):
        x = self.patch_embed(x).permute(0, 2, 3, 1) + self.pos
        for i, block in enumerate(self.blocks):
            x = block(x, shift=2 * (i % 2))
        return self.head(self.norm(x).mean(dim=(1, 2)))


def build_data(n, seed):
    g = torch.Generator().manual_seed(seed)
    protos = torch.randn(5, 3, 16, 16, generator=torch.Generator().manual_seed(6))
    y = torch.randint(0, 5, (n,), generator=g)
    return TensorDataset(0.6 * protos[y] + torch.randn(n, 3, 16, 16, generator=g), y)


def lr_at(step, n_iter_per_epoch):
    warm, total = WARMUP_EPOCHS * n_iter_per_epoch, EPOCHS * n_iter_per_epoch
    if step < warm:
        return WARMUP_LR + (BASE_LR - WARMUP_LR) * step / warm
    return MIN_LR + 0.5 * (BASE_LR - MIN_LR) * (1 + math.cos(math.pi * (step - warm) / (total - warm)))


@torch.no_grad()
def validate(model, loader):
    model.eval()
    return 100.0 * sum((model(x).argmax(1) == y).sum().item() for x, y in loader) / len(loader.dataset)


def main():
    torch.manual_seed(0)
    loader_train = DataLoader(build_data(800, 1), batch_size=BATCH_SIZE, shuffle=True, drop_last=True)
    loader_val = DataLoader(build_data(300, 2), batch_size=100)
    model = TinySwin()
    optimizer = torch.optim.AdamW(model.parameters(), lr=BASE_LR, weight_decay=WEIGHT_DECAY)
    criterion, num_steps = nn.CrossEntropyLoss(), len(loader_train)
    for epoch in range(EPOCHS):
        model.train()
        start = time.time()
        for idx, (samples, targets) in enumerate(loader_train):
            for group in optimizer.param_groups:
                group["lr"] = lr_at(epoch * num_steps + idx, num_steps)
            loss = criterion(model(samples), targets)
            optimizer.zero_grad()
            loss.backward()
            grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            if idx % PRINT_FREQ == 0:
                lr = optimizer.param_groups[0]["lr"]
                eta = datetime.timedelta(seconds=int((time.time() - start) / (idx + 1) * (num_steps - idx)))
                print(
                    f"Train: [{epoch}/{EPOCHS}][{idx}/{num_steps}]\t"
                    f"eta {eta} lr {lr:.3f}\t wd {WEIGHT_DECAY:.4f}\t"
                    f"loss {loss.item():.4f} grad_norm {grad_norm.item():.4f}")
        print(f" * Acc@1 {validate(model, loader_val):.3f}")


if __name__ == "__main__":
    main()
