"""Credit scoring: first a rate is looked for, then the network is trained with it."""
import torch
import torch.nn as nn
from sklearn.datasets import make_classification
from sklearn.preprocessing import StandardScaler
from torch.utils.data import DataLoader, TensorDataset


def load(seed=0):
    x, y = make_classification(1200, 20, n_informative=8, weights=[0.6], random_state=seed)
    train_x, test_x, train_y, test_y = x[:900], x[900:], y[:900], y[900:]
    scaler = StandardScaler().fit(train_x)
    to = lambda features, labels: TensorDataset(
        torch.tensor(scaler.transform(features), dtype=torch.float32), torch.tensor(labels, dtype=torch.float32)
    )
    return to(train_x, train_y), to(test_x, test_y)


def build(inputs, hidden=(64, 32)):
    layers, width = [], inputs
    for size in hidden:
        layers += [nn.Linear(width, size), nn.ReLU(), nn.Dropout(0.1)]
        width = size
    return nn.Sequential(*layers, nn.Linear(width, 1))


def find_rate(model, loader, criterion, low=1e-5, high=10.0, steps=60):
    """Raise the rate from batch to batch; the best one is a tenth of where the loss is smallest."""
    before = model.state_dict()  # <- here
    optimizer = torch.optim.SGD(model.parameters(), lr=low)
    rates, losses, smooth = [], [], None
    batches = iter(loader)
    for step in range(steps):
        try:
            x, y = next(batches)
        except StopIteration:
            batches = iter(loader)
            x, y = next(batches)
        rate = low * (high / low) ** (step / (steps - 1))
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        loss = criterion(model(x).squeeze(1), y)
        loss.backward()
        optimizer.step()
        smooth = loss.item() if smooth is None else 0.8 * smooth + 0.2 * loss.item()
        rates.append(rate)
        losses.append(smooth)
        if smooth > 4 * min(losses):
            break
    model.load_state_dict(before)  # <- here
    return rates[losses.index(min(losses))] / 10


def accuracy(model, loader):
    model.eval()
    hits = 0
    with torch.no_grad():
        for x, y in loader:
            hits += ((model(x).squeeze(1) > 0) == y.bool()).sum().item()
    model.train()
    return hits / len(loader.dataset)


def main():
    torch.manual_seed(2)
    train, test = load()
    train_loader, test_loader = DataLoader(train, 50, shuffle=True), DataLoader(test, 100)
    model, criterion = build(20), nn.BCEWithLogitsLoss()
    rate = find_rate(model, train_loader, criterion)
    print(f"rate {rate:.4g}, accuracy before the training {accuracy(model, test_loader):.3f}")
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    for epoch in range(6):
        for x, y in train_loader:
            optimizer.zero_grad()
            criterion(model(x).squeeze(1), y).backward()
            optimizer.step()
        print(f"epoch {epoch}: accuracy {accuracy(model, test_loader):.3f}")


if __name__ == "__main__":
    main()
