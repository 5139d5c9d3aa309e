"""A LightningModule that optimizes two nets by hand, with toggled optimizers."""

from __future__ import annotations

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class ManualGAN(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 3))
        self.discriminator = nn.Sequential(nn.Linear(3, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))

    def configure_optimizers(self):
        return [
            torch.optim.Adam(net.parameters(), lr=5e-4, betas=(0.5, 0.999))
            for net in (self.generator, self.discriminator)
        ]

    def training_step(self, batch, batch_idx):
        (real,) = batch
        opt_g, opt_d = self.optimizers()
        noise = torch.randn(len(real), 5)
        self.toggle_optimizer(opt_g)
        scores = self.discriminator(self.generator(noise))
        opt_g.zero_grad()
        self.manual_backward(F.binary_cross_entropy_with_logits(scores, torch.ones_like(scores)))
        opt_g.step()
        self.untoggle_optimizer(opt_g)

        self.toggle_optimizer(opt_d)
        real_scores, fake_scores = (
            self.discriminator(real),
            self.discriminator(self.generator(noise).detach()),
        )
        d_loss = F.binary_cross_entropy_with_logits(
            real_scores, torch.ones_like(real_scores)
        ) + F.binary_cross_entropy_with_logits(fake_scores, torch.zeros_like(fake_scores))
        opt_d.zero_grad()
        self.manual_backward(d_loss)
        opt_d.step()
        self.untoggle_optimizer(opt_d)
        self.log("d_loss", d_loss)


L.seed_everything(0)
angle = 6.283 * torch.rand(320)
points = torch.stack([angle.cos(), angle.sin(), (2 * angle).sin()], 1)
trainer = L.Trainer(
    max_epochs=2,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(ManualGAN(), DataLoader(TensorDataset(points), batch_size=32, shuffle=True))
