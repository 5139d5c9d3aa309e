"""One engine for training and scoring."""
import torch
from torch import nn


class Engine:
    def __init__(self, model, max_lr, steps):
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=max_lr)
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, max_lr=max_lr, total_steps=steps + 1)
        self.criterion = nn.CrossEntropyLoss(label_smoothing=0.05)

    def train_epoch(self, loader):
        self.model.train()
        total = 0.0
        for mel, label in loader:
            self.optimizer.zero_grad()
            loss = self.criterion(self.model(mel), label)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.scheduler.step()
            total += loss.item() / len(loader)
        return total

    @torch.no_grad()
    def evaluate(self, loader):
        self.model.eval()
        right = 0.0
        for mel, label in loader:
            hits = self.model(mel).argmax(1).eq(label)
            right += hits.float().mean().item()  # <- here
        return right / len(loader)  # <- here
