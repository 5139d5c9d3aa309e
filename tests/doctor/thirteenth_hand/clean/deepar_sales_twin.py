# Probabilistic forecasts of daily sales (a GRU with a normal likelihood, in the manner of DeepAR)
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.preprocessing import StandardScaler
from torch.utils.data import DataLoader, Dataset

DAYS, SHOPS, CONTEXT, HORIZON = 420, 8, 28, 7


def sales(seed=0):
    rng = np.random.default_rng(seed)
    t = np.arange(DAYS)
    out = []
    for _ in range(SHOPS):
        level, growth = rng.uniform(30, 80), rng.uniform(0.0, 0.12)
        week = 1 + 0.35 * np.sin(2 * np.pi * (t + rng.integers(7)) / 7)
        out.append((level + growth * t) * week * (1 + 0.06 * rng.standard_normal(DAYS)))
    return np.stack(out, 1)  # days x shops


class Windows(Dataset):
    def __init__(self, series, start, end):
        self.series = torch.tensor(series, dtype=torch.float32)
        first = max(start, CONTEXT)
        self.index = [(s, t) for s in range(series.shape[1]) for t in range(first, end - HORIZON + 1)]

    def __len__(self):
        return len(self.index)

    def __getitem__(self, i):
        s, t = self.index[i]
        return self.series[t - CONTEXT : t, s], self.series[t : t + HORIZON, s], torch.tensor(t % 7)


class DeepAR(nn.Module):
    def __init__(self, hidden=40):
        super().__init__()
        self.day = nn.Embedding(7, 4)
        self.gru = nn.GRU(5, hidden, batch_first=True)
        self.mu = nn.Linear(hidden, 1)
        self.sigma = nn.Linear(hidden, 1)

    def step(self, value, day, state):
        h, state = self.gru(torch.cat([value[..., None], self.day(day)], -1), state)
        return self.mu(h).squeeze(-1), F.softplus(self.sigma(h)).squeeze(-1) + 1e-3, state

    def forward(self, past, future, day):
        """Mean and deviation of each future value, given all before it."""
        values = torch.cat([past, future[:, :-1]], 1)
        days = (day[:, None] - CONTEXT + 1 + torch.arange(values.shape[1])) % 7
        mu, sigma, _ = self.step(values, days, None)
        return mu[:, CONTEXT - 1 :], sigma[:, CONTEXT - 1 :]

    @torch.no_grad()
    def forecast(self, past, day, draws=20):
        past, day = past.repeat_interleave(draws, 0), day.repeat_interleave(draws, 0)
        days = (day[:, None] - CONTEXT + 1 + torch.arange(CONTEXT)) % 7
        mu, sigma, state = self.step(past, days, None)
        mu, sigma, out = mu[:, -1], sigma[:, -1], []
        for h in range(HORIZON):
            value = mu + sigma * torch.randn_like(mu)
            out.append(value)
            if h + 1 < HORIZON:
                m, s, state = self.step(value[:, None], ((day + h + 1) % 7)[:, None], state)
                mu, sigma = m[:, 0], s[:, 0]
        return torch.stack(out, 1).view(-1, draws, HORIZON)


def main():
    torch.manual_seed(1)
    series = sales()
    split_val, split_test = 300, 360
    scaler = StandardScaler().fit(series[:split_val])
    scaled = scaler.transform(series)
    train, val, test = Windows(scaled, 0, split_val), Windows(scaled, split_val, split_test), Windows(scaled, split_test, DAYS)
    train_loader = DataLoader(train, batch_size=64, shuffle=True)
    val_loader = DataLoader(val, batch_size=128)
    test_loader = DataLoader(test, batch_size=128, shuffle=False)

    model = DeepAR()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    best, best_state = float("inf"), None
    for epoch in range(5):
        model.train()
        for past, future, day in train_loader:
            mu, sigma = model(past, future, day)
            loss = F.gaussian_nll_loss(mu, future, sigma**2)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
        model.eval()
        total = rows = 0
        with torch.no_grad():
            for past, future, day in val_loader:
                mu, sigma = model(past, future, day)
                total += -torch.distributions.Normal(mu, sigma).log_prob(future).mean(1).sum().item()
                rows += len(past)
        if total / rows < best:
            best, best_state = total / rows, {k: v.clone() for k, v in model.state_dict().items()}
        print(f"epoch {epoch}  train {loss.item():.3f}  val nll {total / rows:.3f}")

    model.load_state_dict(best_state)
    error = inside = n = 0
    for past, future, day in test_loader:
        draws = model.forecast(past, day)
        low, mid, high = draws.quantile(torch.tensor([0.1, 0.5, 0.9]), dim=1)
        error += (mid - future).abs().sum().item()
        inside += ((future >= low) & (future <= high)).sum().item()
        n += future.numel()
    print(f"test: mean absolute error {error / n:.3f} (scaled), {inside / n:.2f} of the values within the 80% band")


if __name__ == "__main__":
    main()
