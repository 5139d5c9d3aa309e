"""Bird calls in long recordings: frames of a log-mel spectrogram, pooled by attention, one label a recording."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

SPECIES = 6


def synthesize(count, frames=40, mels=24, seed=0):
    generator = torch.Generator().manual_seed(seed)
    prototypes = torch.randn(SPECIES, mels, generator=torch.Generator().manual_seed(99))
    labels = torch.randint(0, SPECIES, (count,), generator=generator)
    clips = torch.randn(count, frames, mels, generator=generator) * 0.8
    starts = torch.randint(0, frames - 6, (count,), generator=generator)
    for clip, label, start in zip(clips, labels, starts):
        clip[start : start + 6] += prototypes[label] * 1.5
    return TensorDataset(clips, labels)


class AttentionPool(nn.Module):
    """Weighs the frames of a recording and adds them up."""

    def __init__(self, width):
        super().__init__()
        self.score = nn.Sequential(nn.Linear(width, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, frames):
        weights = F.softmax(self.score(frames), dim=0)  # <- here
        return (weights * frames).sum(dim=1)


class BirdNet(nn.Module):
    def __init__(self, mels=24, width=48):
        super().__init__()
        self.frontend = nn.GRU(mels, width // 2, batch_first=True, bidirectional=True)
        self.pool = AttentionPool(width)
        self.head = nn.Linear(width, SPECIES)

    def forward(self, x):
        frames, _ = self.frontend(x)
        return self.head(self.pool(frames))


def run_epoch(model, loader, optimizer=None):
    model.train(optimizer is not None)
    hits = seen = total = 0.0
    with torch.set_grad_enabled(optimizer is not None):
        for clips, labels in loader:
            scores = model(clips)
            loss = F.cross_entropy(scores, labels)
            if optimizer is not None:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            total += loss.item() * len(labels)
            hits += (scores.argmax(dim=1) == labels).sum().item()
            seen += len(labels)
    return total / seen, hits / seen


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--lr", type=float, default=2e-3)
    args = parser.parse_args()
    torch.manual_seed(0)
    train = DataLoader(synthesize(384, seed=1), batch_size=32, shuffle=True)
    test = DataLoader(synthesize(128, seed=2), batch_size=32)
    model = BirdNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        loss, _ = run_epoch(model, train, optimizer)
        _, accuracy = run_epoch(model, test)
        print(f"epoch {epoch}: loss {loss:.3f}, test accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
