"""Self-supervised pretraining of a small encoder from two crops of each picture (a predictor, no negatives)."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


@dataclass
class Config:
    width: int = 64
    projection: int = 64
    bottleneck: int = 16
    batch_size: int = 64
    epochs: int = 3
    lr: float = 0.05


class Pictures(Dataset):
    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        coarse = torch.rand(count, 3, 6, 6, generator=generator)
        self.pictures = F.interpolate(coarse, size=20, mode="bilinear", align_corners=False)

    def __len__(self):
        return len(self.pictures)

    def crop(self, picture):
        top, left = torch.randint(0, 5, (2,)).tolist()
        view = picture[:, top : top + 16, left : left + 16]
        if torch.rand(()) < 0.5:
            view = view.flip(-1)
        return (view - 0.5) / 0.25 + 0.1 * torch.randn_like(view)

    def __getitem__(self, index):
        return self.crop(self.pictures[index]), self.crop(self.pictures[index])


class Encoder(nn.Sequential):
    def __init__(self, config):
        super().__init__(
            nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, config.projection),
        )


class Siamese(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.encoder = Encoder(config)
        self.predictor = nn.Sequential(
            nn.Linear(config.projection, config.bottleneck), nn.ReLU(), nn.Linear(config.bottleneck, config.projection)
        )

    def forward(self, first, second):
        z1, z2 = self.encoder(first), self.encoder(second)
        p1, p2 = self.predictor(z1), self.predictor(z2)
        return p1, p2, z1, z2  # <- here


def negative_cosine(prediction, target):
    return -F.cosine_similarity(prediction, target, dim=-1).mean()  # <- here


def main():
    config = Config()
    torch.manual_seed(11)
    loader = DataLoader(Pictures(512, seed=1), batch_size=config.batch_size, shuffle=True, drop_last=True)
    model = Siamese(config)
    optimizer = torch.optim.SGD(model.parameters(), lr=config.lr, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, config.epochs * len(loader))
    for epoch in range(config.epochs):
        for first, second in loader:
            p1, p2, z1, z2 = model(first, second)
            loss = 0.5 * (negative_cosine(p1, z2) + negative_cosine(p2, z1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        spread = F.normalize(z1, dim=1).std(dim=0).mean().item()
        print(f"epoch {epoch}: loss {loss.item():.3f}, spread of the embeddings {spread:.4f}")


if __name__ == "__main__":
    main()
