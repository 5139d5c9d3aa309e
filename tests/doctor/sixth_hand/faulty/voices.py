"""Who is speaking? A network over raw waves, the recordings of each speaker in a data set of their own."""
import math

import torch
import torch.nn as nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset

RATE, SECONDS, SPEAKERS = 4000, 0.25, 6


class Speaker(Dataset):
    """Everything that one speaker said."""

    def __init__(self, number, clips, seed):
        self.number = number
        generator = torch.Generator().manual_seed(1000 * seed + number)
        time = torch.arange(int(RATE * SECONDS)) / RATE
        pitch = 100 + 35 * number + 6 * torch.randn(clips, 1, generator=generator)
        phase = torch.rand(clips, 1, generator=generator) * 2 * math.pi
        wave = sum(torch.sin(2 * math.pi * k * pitch * time + k * phase) / k for k in (1, 2, 3))
        self.waves = (wave + 0.3 * torch.randn(wave.shape, generator=generator)).unsqueeze(1)

    def __len__(self):
        return len(self.waves)

    def __getitem__(self, index):
        return self.waves[index], self.number


class M5(nn.Module):
    def __init__(self, classes, width=24):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(1, width, 40, stride=8), nn.BatchNorm1d(width), nn.ReLU(), nn.MaxPool1d(2),
            nn.Conv1d(width, width, 3), nn.BatchNorm1d(width), nn.ReLU(), nn.MaxPool1d(2),
            nn.Conv1d(width, 2 * width, 3), nn.BatchNorm1d(2 * width), nn.ReLU(),
        )
        self.head = nn.Linear(2 * width, classes)

    def forward(self, wave):
        return self.head(self.layers(wave).mean(-1))


def corpus(clips, seed):
    return ConcatDataset([Speaker(number, clips, seed) for number in range(SPEAKERS)])


def loaders(batch_size):
    train = DataLoader(corpus(64, seed=1), batch_size=batch_size, num_workers=0)  # <- here
    return train, DataLoader(corpus(16, seed=2), batch_size=batch_size)


def main():
    torch.manual_seed(6)
    train, test = loaders(batch_size=16)
    model, criterion = M5(SPEAKERS), nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, weight_decay=1e-4)
    for epoch in range(4):
        model.train()
        for wave, speaker in train:  # <- here
            optimizer.zero_grad()
            loss = criterion(model(wave), speaker)
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            hits = sum((model(wave).argmax(1) == speaker).sum().item() for wave, speaker in test)
        print(f"epoch {epoch}: last loss {loss.item():.3f}, accuracy {hits / len(test.dataset):.3f}")


if __name__ == "__main__":
    main()
