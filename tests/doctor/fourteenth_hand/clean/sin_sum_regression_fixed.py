import numpy as np
import torch
from sklearn.preprocessing import MinMaxScaler
from torch import nn
from torch.utils.data import DataLoader


def get_data():
    np.random.seed(0)
    Xtrain = np.random.normal(0, 1, size=(4096, 10))
    Xval = np.random.normal(0, 1, size=(700, 10))
    ytrain = np.sum(np.sin(Xtrain), axis=1)
    yval = np.sum(np.sin(Xval), axis=1)
    scaler = MinMaxScaler()
    ytrain = scaler.fit_transform(ytrain.reshape(-1, 1)).reshape(-1)
    yval = scaler.transform(yval.reshape(-1, 1)).reshape(-1)
    return Xtrain, Xval, ytrain, yval


class XYData(torch.utils.data.Dataset):
    def __init__(self, X, y):
        super(XYData, self).__init__()
        self.X = torch.tensor(X, dtype=torch.float32)
        self.y = torch.tensor(y, dtype=torch.float32)

    def __getitem__(self, index):
        return self.X[index, :], self.y[index]

    def __len__(self):
        return len(self.X)


class MLP(nn.Module):
    def __init__(self, num_features=10):
        super().__init__()
        self.layer1 = nn.Linear(num_features, 64)
        self.layer2 = nn.Linear(64, 1)
        nn.init.xavier_uniform_(self.layer1.weight)
        nn.init.zeros_(self.layer1.bias)
        nn.init.xavier_uniform_(self.layer2.weight)
        nn.init.zeros_(self.layer2.bias)

    def forward(self, x):
        return self.layer2(torch.relu(self.layer1(x)))


torch.manual_seed(0)
Xtrain, Xval, ytrain, yval = get_data()
train_loader = DataLoader(XYData(Xtrain, ytrain), batch_size=64, shuffle=True)
val_loader = DataLoader(XYData(Xval, yval), batch_size=700)

model = MLP()
criterion = nn.MSELoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)

for epoch in range(8):
    model.train()
    for x_batch, y_batch in train_loader:
        optimizer.zero_grad()
        y_hat = model(x_batch).squeeze(1)
        loss = criterion(y_hat, y_batch)
        loss.backward()
        optimizer.step()

    model.eval()
    with torch.no_grad():
        preds = torch.cat([model(x) for x, _ in val_loader]).numpy().reshape(-1)
    mse = np.mean((preds - yval) ** 2)
    if epoch % 2 == 1:
        print(f"epoch {epoch + 1}: val mse {mse:.5f}  (variance of y {yval.var():.5f})")
