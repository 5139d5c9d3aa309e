"""A small U-Net that segments pictures of bytes: the pixels go in from 0 to 255."""

from __future__ import annotations

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


def double_conv(cin, cout):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(cout, cout, 3, padding=1),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    def __init__(self, n_classes=1):
        super().__init__()
        self.down1 = double_conv(1, 8)
        self.down2 = double_conv(8, 16)
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.up1 = double_conv(16, 8)
        self.out = nn.Conv2d(8, n_classes, 1)

    def forward(self, x):
        skip = self.down1(x)
        x = self.down2(nn.functional.max_pool2d(skip, 2))
        return self.out(self.up1(torch.cat([self.up(x), skip], dim=1)))


class CellsDataset(Dataset):
    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        grid = torch.stack(torch.meshgrid(torch.arange(24), torch.arange(24), indexing="ij")).float()
        centres = torch.randint(5, 19, (count, 2, 1, 1), generator=generator).float()
        self.masks = ((grid - centres).norm(dim=1, keepdim=True) < 5).float()
        noise = torch.randint(0, 70, self.masks.shape, generator=generator)
        self.images = (noise + 150 * self.masks).to(torch.uint8)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return {"image": self.images[i].float(), "mask": self.masks[i]}


def train_model(model, device, epochs=2, batch_size=16, learning_rate=1e-4):
    loader = DataLoader(CellsDataset(128, 0), batch_size=batch_size, shuffle=True)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=learning_rate)
    criterion = nn.BCEWithLogitsLoss()
    model.train()
    for epoch in range(1, epochs + 1):
        for batch in loader:
            images, true_masks = batch["image"].to(device), batch["mask"].to(device)
            masks_pred = model(images)  # <- here
            loss = criterion(masks_pred, true_masks)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}")


if __name__ == "__main__":
    torch.manual_seed(0)
    train_model(UNet(), torch.device("cpu"))
