"""Neural collaborative filtering on drawn ratings."""
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

N_USERS, N_ITEMS = 120, 90


class RatingsDataset(Dataset):
    def __init__(self, frame):
        self.users = torch.as_tensor(frame[:, 0], dtype=torch.long)
        self.items = torch.as_tensor(frame[:, 1], dtype=torch.long)
        self.ratings = torch.as_tensor(frame[:, 2], dtype=torch.float32)

    def __len__(self):
        return len(self.ratings)

    def __getitem__(self, i):
        return self.users[i], self.items[i], self.ratings[i]


class NCF(nn.Module):
    def __init__(self, n_users, n_items, factors=16):
        super().__init__()
        self.user_emb, self.item_emb = nn.Embedding(n_users, factors), nn.Embedding(n_items, factors)
        self.mlp = nn.Sequential(nn.Linear(2 * factors, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, users, items):
        pairs = torch.cat([self.user_emb(users), self.item_emb(items)], dim=-1)
        return self.mlp(pairs).squeeze(-1)


def ratings(seed=0):
    rng = np.random.default_rng(seed)
    taste, genre = rng.normal(size=(N_USERS, 2)), rng.normal(size=(N_ITEMS, 2))
    pairs = np.stack([rng.integers(0, N_USERS, 6000), rng.integers(0, N_ITEMS, 6000)], axis=1)
    pairs = np.unique(pairs, axis=0)
    rng.shuffle(pairs)
    stars = 3 + 0.9 * (taste[pairs[:, 0]] * genre[pairs[:, 1]]).sum(1) + 0.2 * rng.normal(size=len(pairs))
    frame = np.column_stack([pairs, stars.clip(1, 5)])
    mean = frame[: int(0.8 * len(frame)), 2].mean()
    frame[:, 2] -= mean
    return frame


def train_epoch(model, loader, optimizer, loss_fn):
    model.train()
    total = 0.0
    for users, items, target in loader:
        optimizer.zero_grad()
        prediction = model(users, items)
        loss = loss_fn(prediction, target)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(target)
    return total / len(loader.dataset)


@torch.no_grad()
def rmse(model, loader):
    model.eval()
    squares = sum(((model(u, i).flatten() - r) ** 2).sum().item() for u, i, r in loader)
    return (squares / len(loader.dataset)) ** 0.5


def main():
    torch.manual_seed(42)
    frame = ratings()
    cut = int(0.8 * len(frame))
    train_loader = DataLoader(RatingsDataset(frame[:cut]), batch_size=64, shuffle=True)
    test_loader = DataLoader(RatingsDataset(frame[cut:]), batch_size=512)
    model = NCF(N_USERS, N_ITEMS)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=1e-5)
    for epoch in range(10):
        loss = train_epoch(model, train_loader, optimizer, nn.MSELoss())
        if epoch % 3 == 0:
            print(f"epoch {epoch}: train {loss:.4f}, test RMSE {rmse(model, test_loader):.4f}")


if __name__ == "__main__":
    main()
