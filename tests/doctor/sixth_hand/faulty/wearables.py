"""What somebody is doing, from the acceleration that a watch measures: a one-dimensional network on windows."""
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

ACTIVITIES = ["sitting", "walking", "running", "cycling"]


def record(count, seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, len(ACTIVITIES), count)
    t = np.arange(64) / 20
    frequency = np.array([0.05, 1.6, 2.8, 1.1])[labels][:, None]
    strength = np.array([0.1, 2.0, 5.0, 1.2])[labels][:, None]
    wave = strength * np.sin(2 * np.pi * frequency * t + rng.uniform(0, 6, (count, 1)))
    axes = np.stack([wave, 0.5 * wave, 9.81 + 0.3 * wave], axis=1) + rng.normal(0, 0.3, (count, 3, 64))
    return (axes * np.array([1.0, 10.0, 4.0])[:, None]).astype(np.float32), labels


class Watch(Dataset):
    def __init__(self, windows, labels, stats=None):
        self.windows, self.labels, self.stats = windows, labels, stats

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        window = self.windows[index]
        if self.stats is not None:
            mean, std = self.stats
            window = (window - mean) / std
        return torch.from_numpy(window), int(self.labels[index])


def network(classes, width=32):
    return nn.Sequential(
        nn.Conv1d(3, width, 7, stride=2), nn.ReLU(),
        nn.Conv1d(width, width, 5, stride=2), nn.ReLU(),
        nn.AdaptiveMaxPool1d(4), nn.Flatten(), nn.Dropout(0.2), nn.Linear(4 * width, classes),
    )


@torch.no_grad()
def confusion(model, loader):
    model.eval()
    table = torch.zeros(len(ACTIVITIES), len(ACTIVITIES), dtype=torch.long)
    for windows, labels in loader:
        for truth, guess in zip(labels, model(windows).argmax(1)):  # <- here
            table[truth, guess] += 1
    return table


def main():
    torch.manual_seed(8)
    windows, labels = record(640, seed=8)
    stats = windows.mean(axis=(0, 2))[:, None], windows.std(axis=(0, 2))[:, None]
    train = DataLoader(Watch(windows, labels, stats), batch_size=32, shuffle=True)
    test = DataLoader(Watch(*record(160, seed=9)), batch_size=64)  # <- here
    model = network(len(ACTIVITIES))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(4):
        model.train()
        for x, y in train:
            loss = criterion(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        table = confusion(model, test)
        print(f"epoch {epoch}: loss {loss.item():.3f}, accuracy {table.diag().sum().item() / table.sum().item():.3f}")
    print(table.tolist())


if __name__ == "__main__":
    main()
