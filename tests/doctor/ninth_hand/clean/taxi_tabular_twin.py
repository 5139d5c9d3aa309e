import numpy as np
import pandas as pd
import torch
import torch.nn as nn
from sklearn.preprocessing import StandardScaler
from torch.utils.data import DataLoader, TensorDataset

SEED = 13
rng = np.random.default_rng(SEED)
torch.manual_seed(SEED)


def trips(n):
    zones = np.array(["airport", "bronx", "harbour", "midtown", "old town", "queens", "station"])
    weights = np.array([3, 0.05, 2, 4, 2, 0.05, 3])
    df = pd.DataFrame({
        "pickup": rng.choice(zones, n, p=weights / weights.sum()),
        "dropoff": rng.choice(zones, n),
        "distance": rng.gamma(2.0, 2.5, n) + 0.5,
        "hour": rng.integers(0, 24, n),
        "passengers": rng.integers(1, 5, n),
    })
    surcharge = df["pickup"].map({z: 3.0 * i for i, z in enumerate(zones)}) + df["dropoff"].map({z: 1.5 * (6 - i) for i, z in enumerate(zones)})
    df["fare"] = 350 + 180 * df["distance"] + 60 * surcharge + 90 * df["hour"].between(17, 20) + rng.normal(0, 40, n)  # in cents
    return df


train_df, test_df = trips(1500), trips(60)
CATS, CONTS = ["pickup", "dropoff"], ["distance", "hour", "passengers"]
for col in CATS:
    categories = sorted(train_df[col].unique())
    train_df[col] = pd.Categorical(train_df[col], categories=categories).codes
    test_df[col] = pd.Categorical(test_df[col], categories=categories).codes
scaler = StandardScaler().fit(train_df[CONTS])
y_mean = np.log(train_df["fare"].clip(lower=1)).mean()


def to_dataset(df):
    cats = torch.tensor(df[CATS].to_numpy(), dtype=torch.long)
    conts = torch.tensor(scaler.transform(df[CONTS]), dtype=torch.float32)
    y = torch.tensor((np.log(df["fare"].clip(lower=1)) - y_mean).to_numpy(), dtype=torch.float32).unsqueeze(1)
    return TensorDataset(cats, conts, y)


class TabularModel(nn.Module):
    def __init__(self, emb_szs, n_cont, layers=(64, 32)):
        super().__init__()
        self.embeds = nn.ModuleList([nn.Embedding(ni, nf) for ni, nf in emb_szs])
        self.bn_cont = nn.BatchNorm1d(n_cont)
        n_in = sum(nf for _, nf in emb_szs) + n_cont
        blocks = []
        for width in layers:
            blocks += [nn.Linear(n_in, width), nn.ReLU(inplace=True), nn.Dropout(0.05)]
            n_in = width
        self.layers = nn.Sequential(*blocks, nn.Linear(n_in, 1))

    def forward(self, x_cat, x_cont):
        x = torch.cat([e(x_cat[:, i]) for i, e in enumerate(self.embeds)] + [self.bn_cont(x_cont)], 1)
        return self.layers(x)


model = TabularModel([(int(train_df[c].max()) + 1, 4) for c in CATS], len(CONTS))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
loss_fn = nn.MSELoss()
train_dl = DataLoader(to_dataset(train_df), batch_size=50, shuffle=True)
test_dl = DataLoader(to_dataset(test_df), batch_size=30)
for epoch in range(8):
    model.train()
    for x_cat, x_cont, y in train_dl:
        loss = loss_fn(model(x_cat, x_cont), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        sq = torch.cat([((model(x_cat, x_cont) + y_mean).exp() - (y + y_mean).exp()).pow(2) for x_cat, x_cont, y in test_dl])
    print(f"epoch {epoch + 1}: train {loss.item():.4f} test RMSE {sq.mean().sqrt().item():.1f} cents")
