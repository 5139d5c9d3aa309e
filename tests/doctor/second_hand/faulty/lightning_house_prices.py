"""A regression in Lightning: predictions of shape (batch, 1), targets of shape (batch,)."""

from __future__ import annotations

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


class HousePrices(L.LightningModule):
    def __init__(self, features: int, hidden: int = 32, lr: float = 1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.layers = nn.Sequential(
            nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1)
        )
        self.criterion = nn.MSELoss()

    def forward(self, x):
        return self.layers(x)

    def _shared_step(self, batch, stage):
        x, y = batch
        loss = self.criterion(self(x), y)  # <- here
        self.log(f"{stage}_loss", loss)
        return loss

    def training_step(self, batch, batch_idx):
        return self._shared_step(batch, "train")

    def validation_step(self, batch, batch_idx):
        self._shared_step(batch, "val")

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


def main():
    L.seed_everything(5)
    features = torch.randn(400, 6)
    prices = features @ torch.tensor([0.8, -0.5, 0.3, 0.0, 0.2, -0.1]) + 0.1 * torch.randn(400)
    train, val = random_split(TensorDataset(features, prices), [320, 80])
    trainer = L.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(
        HousePrices(6), DataLoader(train, batch_size=32, shuffle=True), DataLoader(val, batch_size=80)
    )


if __name__ == "__main__":
    main()
