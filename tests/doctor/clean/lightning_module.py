"""A LightningModule with validation, as Lightning's introduction writes it."""

from __future__ import annotations

import torch
from lightning import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


class Classifier(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(self(x), y)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", nn.functional.cross_entropy(self(x), y))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.02)


inputs, labels = torch.randn(60, 8), torch.arange(60) % 2
train_loader = DataLoader(TensorDataset(inputs[:44], labels[:44]), batch_size=8, shuffle=True)
val_loader = DataLoader(TensorDataset(inputs[44:], labels[44:]), batch_size=8)
trainer = Trainer(
    max_epochs=2,
    accelerator="cpu",
    accumulate_grad_batches=2,
    gradient_clip_val=1.0,
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Classifier(), train_loader, val_loader)
