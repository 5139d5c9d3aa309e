import numpy as np
import pandas as pd
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim


class LinearRegressionModule(nn.Module):
    def __init__(self, num_features):
        super().__init__()
        self.register_parameter('weights', nn.Parameter(torch.rand((num_features, 1)) * 0.01))
        self.register_parameter('bias', nn.Parameter(torch.randn(1) * 0.01))

    def forward(self, inputs):
        return torch.matmul(inputs, self.weights) + self.bias


def train(inputs, targets, total_epoches=1500):
    mod = LinearRegressionModule(inputs.shape[1])
    optimizer = optim.AdamW(mod.parameters(), lr=0.1)

    for step in range(0, total_epoches):
        outputs = mod.forward(inputs)
        loss = F.mse_loss(outputs, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        if step % 300 == 0:
            print(f"step={step} loss={loss.item():.4f}")
    print(f"results: y = x_i * {mod.weights.item():.4f} + {mod.bias.item():.4f}")
    return mod


def load_boston(rows=400):
    """A stand-in for Boston.csv: lstat, rm and the median value."""
    rng = np.random.default_rng(0)
    lstat = rng.gamma(3.0, 4.2, rows)
    rm = rng.normal(6.3, 0.7, rows)
    medv = 34.5 - 0.95 * lstat + 5.0 * (rm - 6.3) + rng.normal(0, 4.0, rows)
    return pd.DataFrame({'lstat': lstat, 'rm': rm, 'medv': medv})


def main():
    torch.manual_seed(0)
    df = load_boston()
    data = torch.tensor(df.values, dtype=torch.float32)
    train_rows, test_rows = data[:300], data[300:]
    for col in (0, 1):
        mean, std = train_rows[:, col].mean(), train_rows[:, col].std()
        inputs = (train_rows[:, col:col + 1] - mean) / std
        test_inputs = (test_rows[:, col:col + 1] - mean) / std
        medv, test_medv = train_rows[:, 2], test_rows[:, 2]
        print(df.columns[col])
        mod = train(inputs, medv)
        with torch.no_grad():
            print(f"test loss={F.mse_loss(mod(test_inputs), test_medv).item():.4f}")


if __name__ == "__main__":
    main()
