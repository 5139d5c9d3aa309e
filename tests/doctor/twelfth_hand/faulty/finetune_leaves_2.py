"""Fine-tune on few labels: pretrain a small backbone on textures, freeze it, train a head, then unfreeze the last block."""
import torch
import torch.nn as nn
import torch.optim as optim

DEVICE = torch.device("cpu")
SIZE = 20


def textures(n, classes, seed, noise=1.3):
    """stripes of `classes` directions and widths"""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (n,), generator=g)
    yy, xx = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    angle = (y.float() * 3.14159 / classes)[:, None, None]
    freq = (0.6 + 0.25 * (y % 3).float())[:, None, None]
    phase = 6.28 * torch.rand(n, 1, 1, generator=g)
    x = torch.sin(freq * (xx * torch.cos(angle) + yy * torch.sin(angle)) + phase)
    x = x + noise * torch.randn(n, SIZE, SIZE, generator=g)
    return x[:, None], y


def conv_block(c_in, c_out):
    return nn.Sequential(
        nn.Conv2d(c_in, c_out, 3, padding=1, bias=False), nn.BatchNorm2d(c_out), nn.ReLU(inplace=True), nn.MaxPool2d(2)
    )


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer1 = conv_block(1, 16)
        self.layer2 = conv_block(16, 32)

    def forward(self, x):
        return self.layer2(self.layer1(x)).mean(dim=(2, 3))


class Classifier(nn.Module):
    def __init__(self, backbone, num_classes):
        super().__init__()
        self.backbone = backbone
        self.fc = nn.Linear(32, num_classes)
        self.frozen_parts = []

    def freeze_backbone(self):
        for param in self.backbone.parameters():
            param.requires_grad = False
        self.frozen_parts = [self.backbone]

    def unfreeze_last_block(self):
        for param in self.backbone.layer2.parameters():
            param.requires_grad = True
        self.frozen_parts = [self.backbone.layer1]

    def train(self, mode=True):
        super().train(mode)
        for part in self.frozen_parts:
            part.eval()  # running statistics stay as they were pretrained
        return self

    def forward(self, x):
        return self.fc(self.backbone(x))


def batches(x, y, bs, shuffle):
    order = torch.randperm(len(x)) if shuffle else torch.arange(len(x))
    for idx in order.split(bs):
        yield x[idx].to(DEVICE), y[idx].to(DEVICE)


def run_epoch(model, data, criterion, optimizer=None, bs=32):
    training = optimizer is not None
    model.train(training)
    loss_sum, correct = 0.0, 0
    with torch.set_grad_enabled(training):
        for x, y in batches(*data, bs, shuffle=training):
            out = model(x)
            loss = criterion(out, y)
            if training:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            loss_sum += loss.item() * y.size(0)
            correct += (out.argmax(1) == y).sum().item()
    return loss_sum / len(data[0]), correct / len(data[0])


def pretrain():
    model = Classifier(Backbone(), 8).to(DEVICE)
    optimizer = optim.Adam(model.parameters(), lr=3e-3)
    data = textures(900, 8, seed=0)
    for _ in range(4):
        loss, acc = run_epoch(model, data, nn.CrossEntropyLoss(), optimizer)
    print(f"pretrained: loss {loss:.3f} acc {acc:.3f}")
    return model.backbone


def main():
    torch.manual_seed(13)
    backbone = pretrain()
    train_data, val_data = textures(240, 5, seed=1), textures(300, 5, seed=2)
    model = Classifier(backbone, 5).to(DEVICE)
    criterion = nn.CrossEntropyLoss()

    print("phase 1: head only")
    model.freeze_backbone()
    optimizer = optim.Adam(filter(lambda p: p.requires_grad, model.parameters()), lr=1e-2)
    for epoch in range(6):
        tr = run_epoch(model, train_data, criterion, optimizer)
        va = run_epoch(model, val_data, criterion)
        print(f"{epoch} train {tr[0]:.3f}/{tr[1]:.3f} val {va[0]:.3f}/{va[1]:.3f}")

    print("phase 2: head and last block")
    model.unfreeze_last_block()
    for epoch in range(6):
        tr = run_epoch(model, train_data, criterion, optimizer)
        va = run_epoch(model, val_data, criterion)
        print(f"{epoch} train {tr[0]:.3f}/{tr[1]:.3f} val {va[0]:.3f}/{va[1]:.3f}")


if __name__ == "__main__":
    main()
