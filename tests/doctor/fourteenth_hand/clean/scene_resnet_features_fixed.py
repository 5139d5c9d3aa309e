import io

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(31)

parts = torch.randn(8, 3, 6, 6)


def scenes(n, recipe):
    y = torch.randint(0, len(recipe), (n,))
    x = torch.randn(n, 3, 24, 24)
    for i in range(n):
        for k in recipe[y[i]]:
            r, c = torch.randint(0, 18, (2,)).tolist()
            x[i, :, r:r + 6, c:c + 6] += 2.0 * parts[k]
    return TensorDataset(x, y)


class Block(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.short = nn.Conv2d(cin, cout, 1, stride, bias=False)

    def forward(self, x):
        out = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(out)) + self.short(x))


class SmallResNet(nn.Module):
    def __init__(self, n_classes):
        super().__init__()
        self.layer1 = Block(3, 16, 2)
        self.layer2 = Block(16, 32, 2)
        self.fc = nn.Linear(32, n_classes)

    def features(self, x):
        return self.layer2(self.layer1(x)).amax((2, 3))

    def forward(self, x):
        return self.fc(self.features(x))


source = scenes(1500, [[k] for k in range(8)])
res = SmallResNet(8)
optimizer = torch.optim.Adam(res.parameters(), lr=3e-3)
for epoch in range(6):
    res.train()
    for x, y in DataLoader(source, batch_size=50, shuffle=True):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(res(x), y)
        loss.backward()
        optimizer.step()
    print(f"pretraining epoch {epoch} last loss {loss.item():.3f}")
file = io.BytesIO()
torch.save({"model": res.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 6, "config": {"width": 16}}, file)
file.seek(0)

res50 = SmallResNet(8)
res50_state = torch.load(file, map_location="cpu")
res50.load_state_dict(res50_state["model"])
res50.eval()

target_train = scenes(400, [[0, 1], [2, 3], [4, 5], [6, 7]])
target_test = scenes(300, [[0, 1], [2, 3], [4, 5], [6, 7]])


def extract(data):
    feats, ys = [], []
    with torch.no_grad():
        for x, y in DataLoader(data, batch_size=100):
            feats.append(res50.features(x))
            ys.append(y)
    return torch.cat(feats), torch.cat(ys)


f_train, y_train = extract(target_train)
f_test, y_test = extract(target_test)
mu, sd = f_train.mean(0), f_train.std(0) + 1e-6
f_train, f_test = (f_train - mu) / sd, (f_test - mu) / sd
head = nn.Linear(32, 4)
opt_head = torch.optim.Adam(head.parameters(), lr=1e-2)
for epoch in range(20):
    for idx in torch.randperm(len(f_train)).split(50):
        opt_head.zero_grad()
        nn.functional.cross_entropy(head(f_train[idx]), y_train[idx]).backward()
        opt_head.step()
with torch.no_grad():
    print("target test accuracy:", round((head(f_test).argmax(1) == y_test).float().mean().item(), 3))
