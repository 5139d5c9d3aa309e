"""The loop."""
import copy

import torch
from torch import nn, optim


class Trainer:
    def __init__(self, model, cfg):
        self.model, self.cfg = model, cfg
        self.criterion = nn.CrossEntropyLoss(label_smoothing=cfg.label_smoothing)
        self.optimizer = optim.SGD(model.parameters(), lr=cfg.lr, momentum=cfg.momentum, weight_decay=cfg.weight_decay, nesterov=True)
        self.scheduler = optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=cfg.epochs - cfg.warmup_epochs, eta_min=1e-4)  # <- here
        self.best_loss, self.best_state = float("inf"), None

    def warm_up(self, progress):
        for group in self.optimizer.param_groups:
            group["lr"] = 1e-7 + (self.cfg.lr - 1e-7) * progress

    def train_one_epoch(self, loader, epoch):
        self.model.train()
        total, count = 0.0, 0
        for step, (images, labels) in enumerate(loader):
            if epoch < self.cfg.warmup_epochs:
                self.warm_up((epoch * len(loader) + step) / (self.cfg.warmup_epochs * len(loader)))
            loss = self.criterion(self.model(images), labels)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()
            total += loss.item() * len(labels)
            count += len(labels)
            if epoch >= self.cfg.warmup_epochs:
                self.scheduler.step()  # <- here
        return total / count

    @torch.no_grad()
    def validate(self, loader):
        self.model.eval()
        total, correct, count = 0.0, 0, 0
        for images, labels in loader:
            logits = self.model(images)
            total += nn.functional.cross_entropy(logits, labels, reduction="sum").item()
            correct += (logits.argmax(dim=1) == labels).sum().item()
            count += len(labels)
        return total / count, correct / count

    def fit(self, train_loader, val_loader):
        for epoch in range(self.cfg.epochs):
            train_loss = self.train_one_epoch(train_loader, epoch)
            val_loss, val_acc = self.validate(val_loader)
            if val_loss < self.best_loss:
                self.best_loss = val_loss
                self.best_state = copy.deepcopy(self.model.state_dict())
            print(f"[{epoch + 1}/{self.cfg.epochs}] train {train_loss:.4f} val {val_loss:.4f} acc {val_acc:.3f} lr {self.optimizer.param_groups[0]['lr']:.2e}")
        self.model.load_state_dict(self.best_state)
