"""Spoken words from drawn spectrograms, by Lightning."""
import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, BATCH = 4, 32


class KeywordData(L.LightningDataModule):
    def __init__(self, count=640, classes=5):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        labels = torch.randint(0, classes, (count,), generator=generator)
        frames = torch.randn(count, 1, 16, 20, generator=generator)
        for frame, label in zip(frames, labels.tolist()):
            start = torch.randint(0, 10, (1,), generator=generator).item()
            for step in range(8):
                frame[0, (2 + 2 * label + step * (1 if label % 2 else -1)) % 16, start + step] += 2.5
        self.train_set = TensorDataset(frames[:512], labels[:512])
        self.val_set = TensorDataset(frames[512:], labels[512:])

    def train_dataloader(self):
        return DataLoader(self.train_set, BATCH, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val_set, BATCH)


class KeywordSpotter(L.LightningModule):
    def __init__(self, classes=5, lr=4e-3):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Dropout(0.1), nn.Linear(32 * 20, classes),
        )

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        self.log("val_loss", F.cross_entropy(logits, y), prog_bar=True)
        self.log("val_acc", (logits.argmax(1) == y).float().mean(), prog_bar=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", factor=0.3, patience=0)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "val_acc"}}


if __name__ == "__main__":
    L.seed_everything(1)
    trainer = L.Trainer(
        max_epochs=EPOCHS, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
    )
    trainer.fit(KeywordSpotter(), datamodule=KeywordData())
    print({name: round(value.item(), 3) for name, value in trainer.callback_metrics.items()})
    print("rate in the end:", trainer.optimizers[0].param_groups[0]["lr"])
