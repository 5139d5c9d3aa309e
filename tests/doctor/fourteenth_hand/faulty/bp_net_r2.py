import numpy as np
import torch
import torch.nn as nn
from sklearn.metrics import r2_score
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

np.random.seed(8)
torch.manual_seed(8)

X = np.random.uniform(-1, 1, size=(600, 7))
y = 2 * X[:, 0] + np.sin(3 * X[:, 1]) - 1.5 * X[:, 2] * X[:, 3] + X[:, 4] ** 2 - X[:, 5] + 0.1 * np.random.randn(600)
X_tr, X_te, y_tr, y_te = train_test_split(X, y, test_size=0.25, random_state=0)
xs, ys = StandardScaler().fit(X_tr), StandardScaler().fit(y_tr[:, None])
X_tr, X_te = (torch.tensor(xs.transform(a), dtype=torch.float32) for a in (X_tr, X_te))
y_tr, y_te = (torch.tensor(ys.transform(a[:, None]), dtype=torch.float32) for a in (y_tr, y_te))


def layer(n_in, n_out):
    return nn.Sequential(nn.Linear(n_in, n_out), nn.BatchNorm1d(n_out), nn.ReLU(), nn.Dropout(0.5))


class BPNet(nn.Module):
    def __init__(self):
        super(BPNet, self).__init__()
        self.layer1 = layer(7, 1)
        self.layer2 = layer(1, 100)
        self.layer3 = layer(100, 150)
        self.last_layer = nn.Linear(150, 1)

    def forward(self, x):
        return self.last_layer(self.layer3(self.layer2(self.layer1(x))))


net = BPNet()
loss_func = nn.MSELoss()
optimizer = torch.optim.Adam(net.parameters(), lr=0.003, weight_decay=1e-4)

for epoch in range(40):
    net.train()
    order = torch.randperm(len(X_tr))
    for start in range(0, len(X_tr), 50):
        idx = order[start:start + 50]
        optimizer.zero_grad()
        loss = loss_func(net(X_tr[idx]), y_tr[idx])
        loss.backward()
        optimizer.step()

    if epoch % 10 == 9:
        net.eval()
        with torch.no_grad():
            p_tr, p_te = net(X_tr), net(X_te)
        print(f"epoch {epoch + 1} train R2 {r2_score(y_tr, p_tr):.3f} test R2 {r2_score(y_te, p_te):.3f} spread of predictions {p_te.std():.3f}")
