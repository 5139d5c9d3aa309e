"""Fine-tune a small convolutional network on drawn birds of six species."""
import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader

from birds_3_parts.callbacks import BestWeights, History
from birds_3_parts.data import BirdDataset
from birds_3_parts.meters import AverageMeter
from birds_3_parts.model import backbone


class Trainer:
    """A loop over epochs that tells its callbacks what happens."""

    def __init__(self, model, optimizer, criterion, callbacks=()):
        self.model, self.optimizer, self.criterion = model, optimizer, criterion
        self.callbacks = callbacks

    def run_epoch(self, loader, training):
        self.model.train(training)
        losses, top1 = AverageMeter("loss"), AverageMeter("acc")
        for images, labels in loader:
            with torch.set_grad_enabled(training):
                output = self.model(images)
                loss = self.criterion(output, labels)
            if training:
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
            losses.update(loss.item(), len(labels))
            top1.update((output.argmax(1) == labels).float().mean().item(), len(labels))
        return losses.avg, top1.avg

    def fit(self, train_loader, val_loader, epochs):
        for epoch in range(epochs):
            train_loss, _ = self.run_epoch(train_loader, training=True)
            val_loss, val_acc = self.run_epoch(val_loader, training=False)
            for callback in self.callbacks:
                callback.on_epoch_end(self, epoch, float(train_loss), float(val_loss), val_acc)
        for callback in self.callbacks:
            callback.on_train_end(self)


def build(num_classes, lr):
    model = backbone(num_classes=100)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=1e-4)  # <- here
    model.fc = nn.Linear(model.fc.in_features, num_classes)  # <- here
    return model, optimizer


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=1.2e-2)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()
    torch.manual_seed(7)

    train_loader = DataLoader(BirdDataset(480, seed=1), args.batch_size, shuffle=True, drop_last=True)
    val_loader = DataLoader(BirdDataset(120, seed=2), args.batch_size)
    model, optimizer = build(num_classes=6, lr=args.lr)
    trainer = Trainer(model, optimizer, nn.CrossEntropyLoss(), [History(), BestWeights()])
    trainer.fit(train_loader, val_loader, args.epochs)
    print("kept:", trainer.run_epoch(val_loader, training=False)[1])


if __name__ == "__main__":
    main()
