# Songs that listeners play: neural collaborative filtering with drawn negatives (a notebook as a script)
# %% imports
import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

np.random.seed(23)
torch.manual_seed(23)

# %% plays: listeners and songs have hidden tastes
n_users, n_songs = 160, 120
tastes, moods = np.random.randn(n_users, 4), np.random.randn(n_songs, 4)
affinity = tastes @ moods.T + 0.3 * np.random.randn(n_users, n_songs)
plays = {u: np.argsort(-affinity[u])[:15] for u in range(n_users)}
train_plays = {u: np.random.permutation(s)[1:] for u, s in plays.items()}
test_plays = {u: np.setdiff1d(plays[u], train_plays[u])[0] for u in plays}


# %% a data set of positives and three drawn negatives for each
class PlaysDataset(Dataset):
    def __init__(self, plays, num_negatives=3):
        users, items, labels = [], [], []
        for u, songs in plays.items():
            for s in songs:
                users.append(u)
                items.append(s)
                labels.append(1.0)
        for u, songs in plays.items():
            taken = set(songs.tolist())
            for _ in range(num_negatives * len(songs)):
                s = np.random.randint(n_songs)
                while s in taken:
                    s = np.random.randint(n_songs)
                users.append(u)
                items.append(s)
                labels.append(0.0)
        self.users, self.items = torch.tensor(users), torch.tensor(np.array(items))
        self.labels = torch.tensor(labels)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.users[i], self.items[i], self.labels[i]


# %% model
class NCF(nn.Module):
    def __init__(self, num_users, num_items, dim=16):
        super().__init__()
        self.user_embedding = nn.Embedding(num_users, dim)
        self.item_embedding = nn.Embedding(num_items, dim)
        self.fc1 = nn.Linear(3 * dim, 48)
        self.fc2 = nn.Linear(48, 24)
        self.output = nn.Linear(24, 1)
        nn.init.normal_(self.user_embedding.weight, std=0.3)
        nn.init.normal_(self.item_embedding.weight, std=0.3)

    def forward(self, users, items):
        u, i = self.user_embedding(users), self.item_embedding(items)
        x = torch.relu(self.fc1(torch.cat([u, i, u * i], dim=-1)))
        x = torch.relu(self.fc2(x))
        return self.output(x).squeeze(-1)


# %% how often is the held-out song among the ten best of a hundred?
@torch.no_grad()
def hit_rate(model):
    model.eval()
    hits = 0
    for u, song in test_plays.items():
        others = np.setdiff1d(np.arange(n_songs), plays[u])
        candidates = torch.tensor(np.append(others, song))
        scores = model(torch.full((len(candidates),), u), candidates)
        hits += int(scores.topk(10).indices.eq(len(candidates) - 1).any())
    return hits / len(test_plays)


# %% training
train_loader = DataLoader(PlaysDataset(train_plays), batch_size=128)
model = NCF(n_users, n_songs)
criterion = nn.BCEWithLogitsLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3, weight_decay=1e-5)
for epoch in range(10):
    model.train()
    running = []
    for users, items, labels in train_loader:
        loss = criterion(model(users, items), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running.append(loss.item())
    if epoch % 2:
        print(f"epoch {epoch} loss {np.mean(running):.4f} hits among ten {hit_rate(model):.3f}")
