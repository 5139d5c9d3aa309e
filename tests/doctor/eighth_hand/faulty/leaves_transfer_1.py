"""Transfer learning: a backbone that was pretrained on many leaves, a new head for few of them."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def leaves(count, kinds, seed):
    g = torch.Generator().manual_seed(seed)
    bank = torch.randn(12, 3, 12, 12, generator=torch.Generator().manual_seed(5))
    y = torch.randint(0, kinds, (count,), generator=g)
    return TensorDataset(0.5 * bank[y + (12 - kinds)] + 1.3 * torch.randn(count, 3, 12, 12, generator=g), y)


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(24, 48, 3, padding=1), nn.BatchNorm2d(48), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        )

    def forward(self, x):
        return self.layers(x)


class LeafModel(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.backbone, self.fc = Backbone(), nn.Linear(48 * 9, classes)

    def forward(self, x):
        return self.fc(self.backbone(x))


def accuracy(model, loader):
    model.eval()
    with torch.no_grad():
        return sum((model(x).argmax(1) == y).sum().item() for x, y in loader) / len(loader.dataset)


def pretrain(path):
    model = nn.ModuleDict({"module": LeafModel(12)})  # as DataParallel names it
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    model.train()
    for _ in range(4):
        for x, y in DataLoader(leaves(1500, 12, 1), batch_size=64, shuffle=True):
            loss = nn.functional.cross_entropy(model["module"](x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    torch.save({"state_dict": model.state_dict()}, path)


def load_pretrained(model, path):
    state = torch.load(path)["state_dict"]
    state = {name: value for name, value in state.items() if ".fc." not in name}  # <- here
    missing, unexpected = model.load_state_dict(state, strict=False)  # <- here
    print(f"loaded {len(state) - len(unexpected)} of {len(state)} entries, new: {missing[:2]}")


def finetune(model, train_loader, val_loader, epochs, unfreeze_at):
    for param in model.backbone.parameters():
        param.requires_grad = False
    optimizer = torch.optim.SGD(filter(lambda p: p.requires_grad, model.parameters()), lr=0.02, momentum=0.9)
    for epoch in range(epochs):
        model.train()
        if epoch < unfreeze_at:
            model.backbone.eval()
        if epoch == unfreeze_at:
            for param in model.backbone.parameters():
                param.requires_grad = True
            optimizer.add_param_group({"params": model.backbone.parameters(), "lr": 0.002})
        for x, y in train_loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}, accuracy {accuracy(model, val_loader):.3f}")


if __name__ == "__main__":
    torch.manual_seed(8)
    pretrain("backbone.pth")
    model = LeafModel(4)
    load_pretrained(model, "backbone.pth")  # <- here
    train_loader = DataLoader(leaves(64, 4, 2), batch_size=16, shuffle=True)
    val_loader = DataLoader(leaves(300, 4, 3), batch_size=100)
    finetune(model, train_loader, val_loader, epochs=8, unfreeze_at=4)
