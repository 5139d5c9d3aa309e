"""Spectra with bands struck out are filled in again: a denoising network, the bands drawn by the loader's workers."""
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class MaskedSpectra(Dataset):
    def __init__(self, count=256, bins=64, seed=21):
        rng = np.random.RandomState(seed)
        centres, widths = rng.uniform(5, bins - 5, (count, 3, 1)), rng.uniform(1, 4, (count, 3, 1))
        self.spectra = np.exp(-((np.arange(bins) - centres) ** 2) / (2 * widths**2)).sum(1).astype(np.float32)
        self.random = np.random.RandomState(seed)

    def __len__(self):
        return len(self.spectra)

    def __getitem__(self, index):
        clean = self.spectra[index]
        noisy = clean + self.random.normal(0, 0.05, clean.shape).astype(np.float32)  # <- here
        for _ in range(2):
            start = self.random.randint(0, len(clean) - 8)
            noisy[start : start + 8] = 0
        return torch.from_numpy(noisy), torch.from_numpy(clean)




class Filler(nn.Module):
    def __init__(self, bins=64, hidden=96):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(bins, hidden), nn.GELU(), nn.LayerNorm(hidden), nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, bins)
        )

    def forward(self, x):
        return x + self.net(x)


class Runner:
    def __init__(self, config):
        self.config = config
        self.model = Filler()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=config["lr"])

    def loader(self):
        return DataLoader(  # <- here
            MaskedSpectra(),
            batch_size=self.config["batch_size"],
            shuffle=True,
            num_workers=self.config["workers"],
        )

    def run(self):
        loader = self.loader()
        for epoch in range(self.config["epochs"]):
            total = 0.0
            for noisy, clean in loader:  # <- here
                loss = nn.functional.mse_loss(self.model(noisy), clean)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                total += loss.item()
            print(f"epoch {epoch}: {total / len(loader):.5f}")


if __name__ == "__main__":
    torch.manual_seed(21)
    Runner({"lr": 2e-3, "batch_size": 16, "workers": 2, "epochs": 2}).run()
