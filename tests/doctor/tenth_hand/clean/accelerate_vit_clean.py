"""A small vision transformer under Accelerate, with gradient accumulation and clipping."""
import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def textures(count, generator):
    labels = torch.randint(0, 5, (count,), generator=generator)
    ys, xs = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    freq = (labels.float() * 0.35 + 0.3)[:, None, None]
    phase = 6.28 * torch.rand(count, 1, 1, generator=generator)
    image = torch.sin(freq * xs + phase) * torch.cos(freq * ys + phase)
    image = image.unsqueeze(1) + 0.9 * torch.randn(count, 1, 16, 16, generator=generator)
    return TensorDataset(image, labels)


class ViT(nn.Module):
    def __init__(self, dim=48, depth=2, heads=4, patch=4, classes=5):
        super().__init__()
        self.patches = nn.Conv2d(1, dim, patch, patch)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.positions = nn.Parameter(0.02 * torch.randn(1, 17, dim))
        layer = nn.TransformerEncoderLayer(dim, heads, 2 * dim, 0.1, activation="gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], dim=1) + self.positions
        return self.head(self.norm(self.blocks(x))[:, 0])


def evaluate(accelerator, model, loader):
    model.eval()
    correct, total = 0, 0
    for images, labels in loader:
        with torch.no_grad():
            predictions = model(images).argmax(dim=-1)
        predictions, labels = accelerator.gather_for_metrics((predictions, labels))
        correct += (predictions == labels).sum().item()
        total += len(labels)
    return correct / total


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gradient_accumulation_steps", type=int, default=2)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--epochs", type=int, default=4)
    args = parser.parse_args()
    set_seed(77)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=args.gradient_accumulation_steps)

    generator = torch.Generator().manual_seed(77)
    train_loader = DataLoader(textures(768, generator), batch_size=32, shuffle=True)
    val_loader = DataLoader(textures(192, generator), batch_size=64)
    model = ViT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    model, optimizer, train_loader, val_loader = accelerator.prepare(model, optimizer, train_loader, val_loader)

    criterion = nn.CrossEntropyLoss()
    for epoch in range(args.epochs):
        model.train()
        for images, labels in train_loader:
            with accelerator.accumulate(model):
                loss = criterion(model(images), labels)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        accelerator.print(f"epoch {epoch} loss {loss.item():.3f} accuracy {evaluate(accelerator, model, val_loader):.3f}")


if __name__ == "__main__":
    main()
