"""Fine-tune a small event-stream classifier, with early stopping on the tuning split."""
import os
import tempfile
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class OptimizationConfig:
    init_lr: float = 3e-3
    max_epochs: int = 40
    batch_size: int = 32
    patience: int = 8


def event_streams(n_subjects, seed, n_events=16, n_types=20):
    g = torch.Generator().manual_seed(seed)
    events = torch.randint(0, n_types, (n_subjects, n_events), generator=g)
    gaps = torch.rand(n_subjects, n_events, generator=g)
    risk = ((events < 5).float() * gaps).sum(1) - ((events >= 15).float() * gaps).sum(1)
    label = (risk + 0.7 * torch.randn(n_subjects, generator=g) > 0).float()
    return TensorDataset(events, gaps, label)


class ESTForStreamClassification(nn.Module):
    def __init__(self, n_types=20, hidden=48):
        super().__init__()
        self.embed = nn.Embedding(n_types, 32)
        self.rnn = nn.GRU(33, hidden, batch_first=True)
        self.logit_layer = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, events, gaps):
        x = torch.cat([self.embed(events), gaps.unsqueeze(-1)], dim=-1)
        return self.logit_layer(self.rnn(x)[0].mean(dim=1)).squeeze(-1)


class ESTLightning:
    def __init__(self, model, cfg, save_dir):
        self.model, self.cfg, self.save_dir = model, cfg, save_dir
        self.criterion = nn.BCEWithLogitsLoss()
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.init_lr, weight_decay=0.01)

    def training_epoch(self, loader):
        self.model.train()
        total = 0.0
        for events, gaps, label in loader:
            loss = self.criterion(self.model(events, gaps), label)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            total += loss.item() * len(label)
        return total / len(loader.dataset)

    @torch.no_grad()
    def evaluate(self, loader):
        self.model.eval()
        loss, hit = 0.0, 0
        for events, gaps, label in loader:
            logits = self.model(events, gaps)
            loss += self.criterion(logits, label).item() * len(label)
            hit += ((logits > 0).float() == label).sum().item()
        return loss / len(loader.dataset), hit / len(loader.dataset)

    def fit(self, train_loader, tuning_loader):
        best_loss, waited = float("inf"), 0
        for epoch in range(self.cfg.max_epochs):
            train_loss = self.training_epoch(train_loader)
            tuning_loss, tuning_acc = self.evaluate(tuning_loader)
            print(f"epoch {epoch:2d} train_loss {train_loss:.4f} tuning_loss {tuning_loss:.4f} tuning_acc {tuning_acc:.3f}")
            if tuning_loss < best_loss:
                best_loss, waited = tuning_loss, 0
            else:
                waited += 1
                if waited >= self.cfg.patience:
                    print(f"no gain for {waited} epochs (best tuning_loss {best_loss:.4f}), stopping early")
                    break
        torch.save(self.model.state_dict(), os.path.join(self.save_dir, "pretrained_weights.pt"))


def main():
    torch.manual_seed(5)
    cfg = OptimizationConfig()
    save_dir = tempfile.mkdtemp()
    train_loader = DataLoader(event_streams(300, 1), batch_size=cfg.batch_size, shuffle=True)
    tuning_loader = DataLoader(event_streams(400, 2), batch_size=200)
    held_out_loader = DataLoader(event_streams(1000, 3), batch_size=200)
    LM = ESTLightning(ESTForStreamClassification(), cfg, save_dir)
    LM.fit(train_loader, tuning_loader)

    model = ESTForStreamClassification()
    model.load_state_dict(torch.load(os.path.join(save_dir, "pretrained_weights.pt")))
    LM = ESTLightning(model, cfg, save_dir)
    print("tuning loss %.4f acc %.3f" % LM.evaluate(tuning_loader))
    print("held-out loss %.4f acc %.3f" % LM.evaluate(held_out_loader))


if __name__ == "__main__":
    main()
