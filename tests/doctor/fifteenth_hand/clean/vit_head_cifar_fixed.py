import math
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

NUM_CLASSES = 10
torch.manual_seed(42)


class TinyViT(nn.Module):
    def __init__(self, dim=48, depth=2, heads=4, patch=4, size=16):
        super().__init__()
        self.patch_embed = nn.Conv2d(3, dim, patch, patch)
        self.pos = nn.Parameter(torch.randn(1, (size // patch) ** 2, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(dim, heads, 2 * dim, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(dim)
        self.num_features = dim

    def forward(self, x):
        x = self.patch_embed(x).flatten(2).transpose(1, 2) + self.pos
        return self.norm(self.encoder(x)).mean(dim=1)


class ClassificationTask(nn.Module):
    def __init__(self, backbone, lr=1e-3, max_epochs=6):
        super().__init__()
        self.backbone = backbone
        self.head = nn.Sequential(nn.Linear(backbone.num_features, NUM_CLASSES))
        self.loss_fn = nn.CrossEntropyLoss()
        self.lr, self.max_epochs = lr, max_epochs

    def forward(self, x):
        return self.head(self.backbone(x))

    def training_step(self, batch: Any, batch_idx: int):
        x, y = batch
        y_hat = self(x)
        return self.loss_fn(y_hat, y), (y_hat.argmax(1) == y).float().mean()

    def validation_step(self, batch: Any, batch_idx: int):
        x, y = batch
        y_hat = self(x)
        return self.loss_fn(y_hat, y).item() * len(y), (y_hat.argmax(1) == y).sum().item()

    def configure_optimizers(self, steps_per_epoch):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=0.01)
        total = self.max_epochs * steps_per_epoch
        warm = total // 10
        factor = lambda s: (s + 1) / warm if s < warm else 0.5 * (1 + math.cos(math.pi * (s - warm) / (total - warm)))
        return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def cifar_like(n, seed):
    g = torch.Generator().manual_seed(seed)
    protos = torch.randn(NUM_CLASSES, 3, 16, 16, generator=torch.Generator().manual_seed(99))
    y = torch.randint(0, NUM_CLASSES, (n,), generator=g)
    x = 0.45 * protos[y] + torch.randn(n, 3, 16, 16, generator=g)
    return TensorDataset((x - x.mean()) / x.std(), y)


def fit(task, train_loader, val_loader):
    optimizer, scheduler = task.configure_optimizers(len(train_loader))
    for epoch in range(task.max_epochs):
        task.train()
        for batch_idx, batch in enumerate(train_loader):
            loss, acc = task.training_step(batch, batch_idx)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
        task.eval()
        val_loss = val_hit = 0.0
        with torch.no_grad():
            for batch_idx, batch in enumerate(val_loader):
                loss_sum, hit = task.validation_step(batch, batch_idx)
                val_loss, val_hit = val_loss + loss_sum, val_hit + hit
        n = len(val_loader.dataset)
        print(f"Epoch {epoch}: train_loss={loss.item():.3f}, train_acc={acc.item():.3f}, val_loss={val_loss / n:.3f}, val_acc={val_hit / n:.3f}")


if __name__ == "__main__":
    train_loader = DataLoader(cifar_like(2400, 1), batch_size=64, shuffle=True, drop_last=True)
    val_loader = DataLoader(cifar_like(600, 2), batch_size=200)
    fit(ClassificationTask(TinyViT()), train_loader, val_loader)
