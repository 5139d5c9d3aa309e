"""Which customers leave? A table in pandas, categories as embeddings, numbers scaled."""
import numpy as np
import pandas as pd
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

NUMBERS, CATEGORIES = ["age", "tenure", "spend", "calls"], ["plan", "region"]


def customers(count=1500, seed=17):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({
        "age": rng.normal(45, 14, count), "tenure": rng.exponential(24, count), "spend": rng.gamma(3, 20, count),
        "calls": rng.poisson(2, count), "plan": rng.integers(0, 3, count), "region": rng.integers(0, 8, count),
    })
    pressure = 0.5 * frame.calls - 0.04 * frame.tenure + 0.6 * (frame.plan == 0) + rng.normal(0, 1, count)
    frame["left"] = (pressure > pressure.median()).astype(int)
    return frame


def split(frame, fraction=0.8):
    train = frame.sample(frac=fraction, random_state=1)
    test = frame.drop(train.index)
    return train.reset_index(drop=True), test.reset_index(drop=True)


def tensors(frame, mean, std):
    numbers = torch.tensor(((frame[NUMBERS] - mean) / std).to_numpy(), dtype=torch.float32)
    categories = torch.tensor(frame[CATEGORIES].to_numpy(), dtype=torch.long)
    return TensorDataset(numbers, categories, torch.tensor(frame["left"].to_numpy(), dtype=torch.float32))


class TabularNet(nn.Module):
    def __init__(self, sizes=(3, 8), numbers=4, hidden=128):
        super().__init__()
        self.embeddings = nn.ModuleList([nn.Embedding(size, 4) for size in sizes])
        self.layers = nn.Sequential(
            nn.Linear(numbers + 4 * len(sizes), hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1)
        )

    def forward(self, numbers, categories):
        parts = [table(categories[:, column]) for column, table in enumerate(self.embeddings)]
        return self.layers(torch.cat([numbers, *parts], dim=1)).squeeze(1)


def accuracy(model, loader):
    model.eval()
    hits = 0
    with torch.no_grad():
        for numbers, categories, left in loader:
            hits += ((model(numbers, categories) > 0) == left.bool()).sum().item()
    return hits / len(loader.dataset)


def main():
    torch.manual_seed(17)
    train_frame, test_frame = split(customers())
    mean, std = train_frame[NUMBERS].mean(), train_frame[NUMBERS].std()
    train = DataLoader(tensors(train_frame, mean, std), batch_size=64, shuffle=True)
    test = DataLoader(tensors(test_frame, mean, std), batch_size=128)
    model, criterion = TabularNet(), nn.BCEWithLogitsLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(6):
        model.train()
        for numbers, categories, left in train:
            loss = criterion(model(numbers, categories), left)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: train {accuracy(model, train):.3f}, test {accuracy(model, test):.3f}")


if __name__ == "__main__":
    main()
