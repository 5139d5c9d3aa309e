"""Tomorrow's load of a grid from the week before: an LSTM over windows."""
import torch
from torch import nn
from torch.utils.data import DataLoader

from load_mended_parts.forecaster import Forecaster
from load_mended_parts.windows import Windows, series


def train(model, loader, epochs=3, lr=5e-3):
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    criterion = nn.L1Loss()
    for epoch in range(epochs):
        model.train()
        losses = []
        for window, target in loader:
            optimizer.zero_grad()
            prediction = model(window)
            loss = criterion(prediction, target)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch}: {sum(losses) / len(losses):.4f}")


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    off, seen = 0.0, 0
    for window, target in loader:
        off += (model(window).reshape(-1) - target.reshape(-1)).abs().sum().item()
        seen += len(window)
    return off / seen


def main():
    torch.manual_seed(6)
    load = series(1400)
    train_part, test_part = load[:1100], load[1100:]
    mean, std = train_part.mean(), train_part.std()
    train_loader = DataLoader(Windows((train_part - mean) / std, 28), batch_size=32, shuffle=True, drop_last=True)
    test_loader = DataLoader(Windows((test_part - mean) / std, 28), batch_size=32, drop_last=True)
    model = Forecaster(hidden=24)
    train(model, train_loader)
    print(f"held out: off by {evaluate(model, test_loader):.4f} deviations")


if __name__ == "__main__":
    main()
