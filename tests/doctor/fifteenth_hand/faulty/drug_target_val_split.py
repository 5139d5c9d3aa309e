import copy

import numpy as np
import pandas as pd
import torch
import torch.nn as nn
from sklearn.metrics import average_precision_score, roc_auc_score
from torch.utils.data import DataLoader, Dataset

ALPHABET = "ACDEFGHIKLMNPQRSTVWY"


def interaction_table(n, seed, shift):
    """Pairs of a drug's fingerprint and a protein; some sub-structures bind to some motifs."""
    rng = np.random.RandomState(seed)
    fp = (rng.rand(n, 32) < 0.3).astype(np.float32)
    comp = rng.dirichlet(np.ones(20) * shift, n)
    seqs = ["".join(rng.choice(list(ALPHABET), 30, p=p)) for p in comp]
    motif = np.array([sum(s.count(a) for a in "CDE") - sum(s.count(a) for a in "KR") for s in seqs])
    score = 0.35 * motif + 1.1 * fp[:, :4].sum(1) - 1.1 * fp[:, 4:8].sum(1) + 1.2 * rng.randn(n)
    return pd.DataFrame({"Drug": list(fp), "Protein": seqs, "Y": (score > np.median(score)).astype(int)})


class DTIDataset(Dataset):
    def __init__(self, df):
        self.df = df.reset_index(drop=True)

    def __len__(self):
        return len(self.df)

    def __getitem__(self, i):
        row = self.df.iloc[i]
        prot = torch.tensor([ALPHABET.index(c) for c in row["Protein"]])
        return torch.tensor(row["Drug"]), prot, torch.tensor(float(row["Y"]))


class BilinearDTI(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.drug = nn.Sequential(nn.Linear(32, d), nn.ReLU(), nn.Linear(d, d))
        self.emb = nn.Embedding(20, 24)
        self.cnn = nn.Sequential(nn.Conv1d(24, d, 3, padding=1), nn.ReLU())
        self.mlp = nn.Sequential(nn.Linear(3 * d, d), nn.ReLU(), nn.Dropout(0.2), nn.Linear(d, 1))

    def forward(self, v_d, v_p):
        a, b = self.drug(v_d), self.cnn(self.emb(v_p).transpose(1, 2)).mean(-1)
        return self.mlp(torch.cat([a, b, a * b], dim=1)).squeeze(1)


class Trainer:
    def __init__(self, model, train_loader, val_loader, test_loader, epochs=9):
        self.model, self.epochs = model, epochs
        self.train_dataloader, self.val_dataloader, self.test_dataloader = train_loader, val_loader, test_loader
        self.optim = torch.optim.Adam(model.parameters(), lr=2e-3, weight_decay=1e-5)
        self.best_auroc, self.best_model, self.best_epoch = 0.0, None, 0

    def train_epoch(self):
        self.model.train()
        total = 0.0
        for v_d, v_p, y in self.train_dataloader:
            self.optim.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits(self.model(v_d, v_p), y)
            loss.backward()
            self.optim.step()
            total += loss.item()
        return total / len(self.train_dataloader)

    @torch.no_grad()
    def test(self, model, loader):
        model.eval()
        pairs = [(torch.sigmoid(model(v_d, v_p)), y) for v_d, v_p, y in loader]
        score, label = (torch.cat(t).numpy() for t in zip(*pairs))
        return roc_auc_score(label, score), average_precision_score(label, score)

    def train(self):
        for epoch in range(1, self.epochs + 1):
            train_loss = self.train_epoch()
            auroc, auprc = self.test(self.model, self.val_dataloader)
            if auroc >= self.best_auroc:
                self.best_auroc, self.best_epoch, self.best_model = auroc, epoch, copy.deepcopy(self.model)
            print(f"Epoch {epoch} training loss {train_loss:.4f} validation AUROC {auroc:.4f} AUPRC {auprc:.4f}")
        auroc, auprc = self.test(self.best_model, self.test_dataloader)
        print(f"Test at best model of epoch {self.best_epoch}: AUROC {auroc:.4f} AUPRC {auprc:.4f}")


def main():
    torch.manual_seed(2048)
    train_source = interaction_table(500, 1, shift=1.0)
    target = interaction_table(240, 2, shift=3.0)
    test_target = target
    test_target_dataset = DTIDataset(test_target)
    training_generator = DataLoader(DTIDataset(train_source), batch_size=32, shuffle=True, drop_last=True)
    val_generator = DataLoader(test_target_dataset, batch_size=60, shuffle=False)
    test_generator = DataLoader(test_target_dataset, batch_size=60, shuffle=False)
    Trainer(BilinearDTI(), training_generator, val_generator, test_generator).train()


if __name__ == "__main__":
    main()
