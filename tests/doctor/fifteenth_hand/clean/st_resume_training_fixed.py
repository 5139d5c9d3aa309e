import os
import random
import tempfile

import torch
from torch import nn
from torch.utils.data import DataLoader

VOCAB = 200


class SentenceTransformer(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        self.word_embedding = nn.EmbeddingBag(VOCAB, dim, mode="mean")
        self.dense = nn.Sequential(nn.Linear(dim, dim), nn.Tanh(), nn.Linear(dim, dim))

    def forward(self, features):
        return nn.functional.normalize(self.dense(self.word_embedding(features)), dim=-1)

    def save(self, path):
        os.makedirs(path, exist_ok=True)
        torch.save(self.state_dict(), os.path.join(path, "model.pt"))

    @classmethod
    def load(cls, path):
        model = cls()
        model.load_state_dict(torch.load(os.path.join(path, "model.pt")))
        return model


class MultipleNegativesRankingLoss(nn.Module):
    def __init__(self, model, scale=20.0):
        super().__init__()
        self.model, self.scale = model, scale

    def forward(self, anchors, positives):
        scores = self.model(anchors) @ self.model(positives).T * self.scale
        return nn.functional.cross_entropy(scores, torch.arange(len(scores)))


class PairDataset:
    """A text of some words and the same in other words, with a few strange ones."""

    def __init__(self, n, seed):
        rng = random.Random(seed)
        self.rows = []
        for _ in range(n):
            a = [rng.randrange(VOCAB) for _ in range(10)]
            b = [(w * 7 + 3) % VOCAB if rng.random() < 0.7 else rng.randrange(VOCAB) for w in a]
            self.rows.append((torch.tensor(a), torch.tensor(b)))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class SentenceTransformerTrainer:
    def __init__(self, model, loss, train_dataset, eval_dataset, output_dir, num_train_epochs=8, lr=2e-3):
        self.model, self.loss = model, loss
        self.train_loader = DataLoader(train_dataset, batch_size=16, shuffle=True, drop_last=True)
        self.eval_loader = DataLoader(eval_dataset, batch_size=16, drop_last=True)
        self.output_dir, self.num_train_epochs, self.lr = output_dir, num_train_epochs, lr

    def _load_from_checkpoint(self, path):
        self.model = SentenceTransformer.load(path)
        self.loss.model = self.model

    @torch.no_grad()
    def evaluate(self):
        self.loss.eval()
        return sum(self.loss(a, b).item() for a, b in self.eval_loader) / len(self.eval_loader)

    def train(self, resume_from_checkpoint=None, stop_after=None):
        start = 0
        if resume_from_checkpoint is not None:
            self._load_from_checkpoint(resume_from_checkpoint)
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=self.lr, weight_decay=0.01)
        if resume_from_checkpoint is not None:
            state = torch.load(os.path.join(resume_from_checkpoint, "trainer.pt"))
            optimizer.load_state_dict(state["optimizer"])
            start = state["epoch"]
        for epoch in range(start + 1, self.num_train_epochs + 1):
            self.loss.train()
            total = 0.0
            for anchors, positives in self.train_loader:
                loss = self.loss(anchors, positives)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.item()
            print({"epoch": epoch, "loss": round(total / len(self.train_loader), 4), "eval_loss": round(self.evaluate(), 4)})
            path = os.path.join(self.output_dir, f"checkpoint-{epoch}")
            self.model.save(path)
            torch.save({"optimizer": optimizer.state_dict(), "epoch": epoch}, os.path.join(path, "trainer.pt"))
            if epoch == stop_after:
                return path
        return path


def new_trainer(output_dir):
    model = SentenceTransformer()
    return SentenceTransformerTrainer(model, MultipleNegativesRankingLoss(model), PairDataset(1200, 1), PairDataset(160, 2), output_dir)


if __name__ == "__main__":
    torch.manual_seed(12)
    output_dir = tempfile.mkdtemp()
    checkpoint = new_trainer(output_dir).train(stop_after=4)
    print("resuming from", os.path.basename(checkpoint))
    new_trainer(output_dir).train(resume_from_checkpoint=checkpoint)
