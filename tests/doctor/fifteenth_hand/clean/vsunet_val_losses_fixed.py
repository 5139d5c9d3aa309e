"""Virtual staining: predict a fluorescence channel from a phase channel."""
import os
import tempfile

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(24)


def fields_of_view(n, seed):
    g = torch.Generator().manual_seed(seed)
    source = torch.randn(n, 1, 24, 24, generator=g)
    source = nn.functional.avg_pool2d(source, 3, 1, 1) * 3
    edges = nn.functional.conv2d(source, torch.tensor([[[[0.0, 1, 0], [1, -4, 1], [0, 1, 0]]]]) / 4, padding=1)
    target = torch.tanh(edges) + 0.4 * torch.randn(n, 1, 24, 24, generator=g)
    return TensorDataset(source, target)


class Unet2d(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        block = lambda i, o: nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.ReLU(), nn.Conv2d(o, o, 3, padding=1), nn.ReLU())
        self.down, self.mid, self.up = block(1, width), block(width, 2 * width), block(3 * width, width)
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        a = self.down(x)
        b = nn.functional.interpolate(self.mid(nn.functional.max_pool2d(a, 2)), scale_factor=2)
        return self.out(self.up(torch.cat([a, b], dim=1)))


class VSUNet:
    def __init__(self, lr=2e-3):
        self.model = Unet2d()
        self.loss_function = nn.MSELoss()
        self.lr = lr
        self.validation_losses = []
        self.logged = {}

    def configure_optimizers(self):
        return torch.optim.AdamW(self.model.parameters(), lr=self.lr, weight_decay=1e-3)

    def training_step(self, batch):
        source, target = batch
        return self.loss_function(self.model(source), target)

    def validation_step(self, batch):
        source, target = batch
        loss = self.loss_function(self.model(source), target)
        self.validation_losses.append(loss.detach())

    def on_validation_epoch_end(self):
        self.logged["loss/validate"] = torch.stack(self.validation_losses).mean().item()
        self.validation_losses.clear()


class Trainer:
    def __init__(self, max_epochs, dirpath):
        self.max_epochs = max_epochs
        self.ckpt = os.path.join(dirpath, "best.ckpt")
        self.best = float("inf")

    def fit(self, module, train_loader, val_loader):
        optimizer = module.configure_optimizers()
        for epoch in range(self.max_epochs):
            module.model.train()
            for batch in train_loader:
                optimizer.zero_grad()
                loss = module.training_step(batch)
                loss.backward()
                optimizer.step()
            module.model.eval()
            with torch.no_grad():
                for batch in val_loader:
                    module.validation_step(batch)
            module.on_validation_epoch_end()
            score = module.logged["loss/validate"]
            saved = score < self.best
            if saved:
                self.best = score
                torch.save(module.model.state_dict(), self.ckpt)
            print(f"epoch {epoch} loss/train_last {loss.item():.4f} loss/validate {score:.4f}{' (saved)' if saved else ''}")

    def test(self, module, loader):
        module.model.load_state_dict(torch.load(self.ckpt))
        module.model.eval()
        with torch.no_grad():
            losses = [module.training_step(batch).item() for batch in loader]
        print(f"loss/test of the saved checkpoint {sum(losses) / len(losses):.4f}")


if __name__ == "__main__":
    module = VSUNet()
    trainer = Trainer(max_epochs=14, dirpath=tempfile.mkdtemp())
    trainer.fit(module, DataLoader(fields_of_view(24, 1), batch_size=4, shuffle=True), DataLoader(fields_of_view(32, 2), batch_size=8))
    trainer.test(module, DataLoader(fields_of_view(64, 3), batch_size=8))
