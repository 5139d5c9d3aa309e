# segmentation, small batches, BN "frozen" to the values of the pretrained model
import copy

import torch
import torch.nn as nn

torch.manual_seed(1)


class SegNet(nn.Module):
    def __init__(self, n_classes):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU(),
            nn.Conv2d(12, 12, 3, padding=2, dilation=2, bias=False), nn.BatchNorm2d(12), nn.ReLU())
        self.head = nn.Conv2d(12, n_classes, 1)

    def forward(self, x):
        return self.head(self.body(x))


def scenes(n, gain, offset):
    """Rectangles (class 1) and bars (class 2) on a noisy ground."""
    mask = torch.zeros(n, 24, 24, dtype=torch.long)
    for m in mask:
        r, c = torch.randint(0, 14, (2,)).tolist()
        m[r:r + 9, c:c + 9] = 1
        k = int(torch.randint(0, 21, (1,)))
        m[:, k:k + 3] = 2
    level = torch.tensor([0.0, 1.0, -1.0])[mask]
    return (level + 0.4 * torch.randn(n, 24, 24)).unsqueeze(1) * gain + offset, mask


def train(model, x, mask, epochs, batch, lr, freeze):
    params = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.SGD(params, lr=lr, momentum=0.9)
    for epoch in range(epochs):
        model.train()
        if freeze:
            freeze_bn(model)
        order = torch.randperm(len(x))
        total = 0.0
        for i in range(0, len(x), batch):
            idx = order[i:i + batch]
            opt.zero_grad()
            loss = nn.functional.cross_entropy(model(x[idx]), mask[idx])
            loss.backward()
            opt.step()
            total += loss.item() * len(idx)
        print(f"epoch {epoch} loss {total / len(x):.4f}")


def freeze_bn(model):
    for m in model.modules():
        if isinstance(m, nn.BatchNorm2d):
            m.momentum = 0
            m.weight.requires_grad = False
            m.bias.requires_grad = False


def mean_iou(model, x, mask):
    model.eval()
    with torch.no_grad():
        pred = model(x).argmax(1)
    ious = []
    for k in range(3):
        inter = ((pred == k) & (mask == k)).sum().item()
        union = ((pred == k) | (mask == k)).sum().item()
        ious.append(inter / union)
    return sum(ious) / 3


source_x, source_mask = scenes(160, gain=1.0, offset=0.0)
target_x, target_mask = scenes(80, gain=0.8, offset=0.9)
test_x, test_mask = scenes(40, gain=0.8, offset=0.9)

pretrained = SegNet(3)
print("pretraining")
train(pretrained, source_x, source_mask, epochs=4, batch=16, lr=0.1, freeze=False)

model = copy.deepcopy(pretrained)
model.head = nn.Conv2d(12, 3, 1)
freeze_bn(model)
print("fine-tuning")
train(model, target_x, target_mask, epochs=5, batch=4, lr=0.02, freeze=True)
print(f"test mIoU {mean_iou(model, test_x, test_mask):.3f}")
