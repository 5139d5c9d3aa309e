"""Income, hours and married from the same columns: one trunk, three heads."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CONFIG = {"hidden": 64, "tasks": {"income": 1, "hours": 1, "sector": 5}, "weights": {"income": 1.0, "hours": 0.5, "sector": 0.5}, "lr": 3e-3, "epochs": 10, "batch_size": 64}


def census(count, seed):
    g = torch.Generator().manual_seed(seed)
    mix = torch.randn(16, 7, generator=torch.Generator().manual_seed(3))
    x = torch.randn(count, 16, generator=g)
    latent = torch.tanh(x @ mix / 2)
    income = (latent[:, 0] + latent[:, 1] * latent[:, 2] + 0.3 * torch.randn(count, generator=g) > 0).float()
    hours = latent[:, 1] - latent[:, 0] ** 2 + 0.1 * torch.randn(count, generator=g)
    sector = latent[:, 2:].argmax(1)
    sector[torch.rand(count, generator=g) < 0.2] = -1  # not answered
    return TensorDataset(x, income, hours, sector)


class MultiTask(nn.Module):
    def __init__(self, features, hidden, tasks):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(features, hidden), nn.LayerNorm(hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.names = list(tasks)
        self.heads = nn.ModuleList([nn.Sequential(nn.Linear(hidden, 24), nn.ReLU(), nn.Linear(24, size)) for size in tasks.values()])

    def forward(self, x):
        shared = self.trunk(x)
        return {name: head(shared) for name, head in zip(self.names, self.heads)}


class MultiTaskLoss(nn.Module):
    def __init__(self, weights):
        super().__init__()
        self.weights = weights
        self.income, self.hours, self.sector = nn.BCEWithLogitsLoss(), nn.MSELoss(), nn.CrossEntropyLoss(ignore_index=-1)

    def forward(self, out, income, hours, sector):
        losses = {
            "income": self.income(out["income"].squeeze(1), income),
            "hours": self.hours(out["hours"].squeeze(1), hours),
            "sector": self.sector(out["sector"], sector),
        }
        total = sum(self.weights[name] * loss for name, loss in losses.items())
        return total, losses


def evaluate(model, data):
    model.eval()
    x, income, hours, sector = data.tensors
    with torch.no_grad():
        out = model(x)
    told = sector >= 0
    return (
        ((out["income"].squeeze(1) > 0) == income.bool()).float().mean().item(),
        (out["hours"].squeeze(1) - hours).pow(2).mean().item(),
        (out["sector"].argmax(1) == sector)[told].float().mean().item(),
    )


def main(config):
    torch.manual_seed(0)
    train_data, val_data = census(1500, 1), census(400, 2)
    loader = DataLoader(train_data, batch_size=config["batch_size"], shuffle=True)
    model = MultiTask(16, config["hidden"], config["tasks"])
    criterion = MultiTaskLoss(config["weights"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    for epoch in range(config["epochs"]):
        model.train()
        for x, *labels in loader:
            total, losses = criterion(model(x), *labels)
            optimizer.zero_grad()
            total.backward()
            optimizer.step()
        if epoch % 3 == 0:
            print(f"epoch {epoch}: loss {total.item():.4f}, income right %.3f, hours off %.4f, sector right %.3f" % evaluate(model, val_data))


if __name__ == "__main__":
    main(CONFIG)
