import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(21)


def make_scans(n, size=24):
    imgs = torch.randn(n, 1, size, size)
    masks = torch.zeros(n, size, size, dtype=torch.long)
    for i in range(n):
        r, c = torch.randint(1, size - 4, (2,)).tolist()
        masks[i, r:r + 3, c:c + 3] = 1
        imgs[i, 0, r:r + 3, c:c + 3] += 1.3
    return imgs, masks


train_x, train_y = make_scans(300)
test_x, test_y = make_scans(100)
train_dl = DataLoader(TensorDataset(train_x, train_y), batch_size=20, shuffle=True)
test_dl = DataLoader(TensorDataset(test_x, test_y), batch_size=50)

seg_net = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(),
    nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
    nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
    nn.Conv2d(16, 2, 1),
)

share = torch.bincount(train_y.flatten()).float() / train_y.numel()
loss_fn = torch.nn.CrossEntropyLoss(weight=0.5 / share)
opt = torch.optim.Adam(seg_net.parameters(), lr=1e-3)


def evaluate():
    seg_net.eval()
    right = inter = union = truth = 0
    with torch.no_grad():
        for x, y in test_dl:
            p = seg_net(x).argmax(1)
            right += (p == y).sum().item()
            inter += ((p == 1) & (y == 1)).sum().item()
            union += ((p == 1) | (y == 1)).sum().item()
            truth += (y == 1).sum().item()
    return right / test_y.numel(), inter / max(union, 1), inter / truth


for epoch in range(6):
    seg_net.train()
    epoch_loss = 0.0
    for x, y in train_dl:
        opt.zero_grad()
        loss = loss_fn(seg_net(x), y)
        loss.backward()
        opt.step()
        epoch_loss += loss.item() * len(x)
    acc, iou, recall = evaluate()
    print(f"epoch {epoch}: loss {epoch_loss / len(train_x):.4f} pixel acc {acc:.4f} tumour iou {iou:.3f} tumour recall {recall:.3f}")
