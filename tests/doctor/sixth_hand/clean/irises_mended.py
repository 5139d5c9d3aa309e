"""Irises, with the targets as vectors of zeros and ones, as a Keras tutorial has them."""
import torch
import torch.nn as nn
from sklearn.datasets import load_iris
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from torch.utils.data import DataLoader, TensorDataset


def prepare(batch_size=16):
    features, labels = load_iris(return_X_y=True)
    onehot = OneHotEncoder(sparse_output=False).fit_transform(labels.reshape(-1, 1))
    x_train, x_test, y_train, y_test = train_test_split(features, onehot, test_size=0.3, random_state=0, stratify=labels)
    scaler = StandardScaler().fit(x_train)
    sets = []
    for x, y in ((x_train, y_train), (x_test, y_test)):
        x = torch.tensor(scaler.transform(x), dtype=torch.float32)
        sets.append(TensorDataset(x, torch.tensor(y, dtype=torch.float32)))
    return DataLoader(sets[0], batch_size, shuffle=True), DataLoader(sets[1], batch_size)


class Network(nn.Module):
    def __init__(self, inputs=4, hidden=(32, 16), outputs=3, dropout=0.1):
        super().__init__()
        sizes = [inputs, *hidden]
        self.hidden = nn.ModuleList([nn.Linear(a, b) for a, b in zip(sizes, sizes[1:])])
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(sizes[-1], outputs)

    def forward(self, x):
        for layer in self.hidden:
            x = self.dropout(torch.relu(layer(x)))
        return self.output(x)


def right(outputs, targets):
    """The share of rows whose largest score is that of the class."""
    guess = torch.argmax(outputs, dim=1)
    truth = torch.argmax(targets, dim=1)
    return (guess == truth).float().mean().item()


class History(list):
    def add(self, **numbers):
        self.append(numbers)
        print(", ".join(f"{name} {number:.3f}" for name, number in numbers.items()))


def fit(model, train, test, epochs):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    criterion = nn.CrossEntropyLoss()
    history = History()
    for _ in range(epochs):
        model.train()
        loss_sum = 0.0
        for x, y in train:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            loss_sum += loss.item() * len(x)
        model.eval()
        with torch.no_grad():
            outputs, targets = zip(*[(model(x), y) for x, y in test])
            accuracy = right(torch.cat(outputs), torch.cat(targets))
        history.add(loss=loss_sum / len(train.dataset), accuracy=accuracy)
    return history


if __name__ == "__main__":
    torch.manual_seed(0)
    fit(Network(), *prepare(), epochs=12)
