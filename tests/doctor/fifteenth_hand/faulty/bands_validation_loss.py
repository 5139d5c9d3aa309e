import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float32)


def band_structures(n, seed):
    """Bond lengths of a chain and the eigenvalues of its tight-binding matrix."""
    g = torch.Generator().manual_seed(seed)
    bonds = 1.0 + 0.3 * torch.randn(n, 5, generator=g)
    hop = -torch.exp(1.0 - bonds)
    H = torch.diag_embed(hop, offset=1) + torch.diag_embed(hop, offset=-1)
    return TensorDataset(bonds - 1.0, torch.linalg.eigvalsh(H))


class NNSK(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 6))

    def forward(self, bonds):
        return self.net(bonds)


class LossLogger:
    def __init__(self):
        self.rows = []

    def __call__(self, **state):
        self.rows.append(state)
        print(", ".join(f"{k}: {v:.6f}" if isinstance(v, float) else f"{k}: {v}" for k, v in state.items()))


class NNSKTrainer:
    def __init__(self, model, train_set, test_set, batch_size=16, lr=3e-3, num_epoch=10):
        self.model = model
        self.train_loader = DataLoader(train_set, batch_size=batch_size, shuffle=True)
        self.test_loader = DataLoader(test_set, batch_size=batch_size)
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        self.lr_scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, gamma=0.85)
        self.validation_lossfunc = self.train_lossfunc = nn.MSELoss()
        self.num_epoch, self.logger = num_epoch, LossLogger()

    def iteration(self, bonds, bands):
        self.model.train()
        loss = self.train_lossfunc(self.model(bonds), bands)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def validation(self):
        self.model.eval()
        with torch.no_grad():
            total_loss = 0.0
            for bonds, bands in self.test_loader:
                total_loss += self.validation_lossfunc(self.model(bonds), bands).item()
        return total_loss

    def run(self):
        for epoch in range(1, self.num_epoch + 1):
            total, count = 0.0, 0
            for bonds, bands in self.train_loader:
                total += self.iteration(bonds, bands) * len(bonds)
                count += len(bonds)
            self.logger(epoch=epoch, lr=self.optimizer.param_groups[0]["lr"], train_loss=total / count, validation_loss=self.validation())
            self.lr_scheduler.step()


if __name__ == "__main__":
    torch.manual_seed(3982)
    model = NNSK()
    NNSKTrainer(model, band_structures(800, 1), band_structures(320, 2)).run()
    bonds, bands = band_structures(400, 3).tensors
    with torch.no_grad():
        print("largest error of a band: %.4f, mean error %.4f" % ((model(bonds) - bands).abs().max(), (model(bonds) - bands).abs().mean()))
