import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset

np.random.seed(5)
torch.manual_seed(5)


def make(n):
    X = np.random.randint(0, 16, size=(n, 12))
    y = np.zeros((n, 16), dtype="float32")
    for row, seq in enumerate(X):
        y[row, np.unique(seq)] = 1.0
    return torch.tensor(X), torch.tensor(y)


X_train, y_train = make(6000)
X_test, y_test = make(1000)


class LSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(16, 10)
        self.lstm = nn.LSTM(10, 50, batch_first=True)
        self.dropout = nn.Dropout(0.1)
        self.fc = nn.Linear(50, 16)

    def forward(self, x):
        x = self.embedding(x)
        x, _ = self.lstm(x, None)
        x = x[:, -1, :]
        x = self.dropout(x)
        return self.fc(x)


device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
model = LSTM().to(device)
criterion = nn.BCEWithLogitsLoss()
optimizer = optim.Adam(model.parameters(), lr=0.005)

train_loader = DataLoader(TensorDataset(X_train, y_train), batch_size=100, shuffle=True)
test_loader = DataLoader(TensorDataset(X_test, y_test), batch_size=100, shuffle=False)


def Train_LSTM(num_epochs):
    hist = np.zeros(num_epochs)
    for t in range(num_epochs):
        running_loss = 0.0
        model.train()
        for inputs, labels in train_loader:
            inputs, labels = inputs.to(device), labels.to(device)
            optimizer.zero_grad()
            loss = criterion(model(inputs), labels)
            loss.backward()
            optimizer.step()
            running_loss += loss.item() * inputs.size(0)
        hist[t] = running_loss / len(X_train)

        model.eval()
        right = 0
        with torch.no_grad():
            for inputs, labels in test_loader:
                pred = (model(inputs.to(device)) > 0).float().cpu()
                right += (pred == labels).sum().item()
        print(f"Epoch {t} loss: {hist[t]:.4f} test bit accuracy: {right / y_test.numel():.4f}")
    return hist


Train_LSTM(6)
