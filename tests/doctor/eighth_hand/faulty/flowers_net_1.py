"""Train a small convolutional network on (drawn) flowers."""
import torch
from torch.utils.data import DataLoader

from flowers_net_1_parts.config import Config
from flowers_net_1_parts.data import FlowerDataset
from flowers_net_1_parts.engine import Trainer
from flowers_net_1_parts.model import FlowerNet


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    train_loader = DataLoader(FlowerDataset(448, seed=1, noise=cfg.noise), batch_size=cfg.batch_size, shuffle=True, drop_last=True)
    val_loader = DataLoader(FlowerDataset(200, seed=2, noise=cfg.noise), batch_size=100)
    model = FlowerNet(cfg.num_classes, cfg.dropout)
    trainer = Trainer(model, cfg)
    trainer.fit(train_loader, val_loader)
    print("loss of what is kept: %.4f, best seen: %.4f" % (trainer.validate(val_loader)[0], trainer.best_loss))


if __name__ == "__main__":
    main()
