import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(12)
num_classes = 3


def synth(n):
    """Background, one large organ, and a small lesion that is hard to see."""
    mask = torch.zeros(n, 32, 32, dtype=torch.long)
    for m in mask:
        r, c = torch.randint(2, 12, (2,)).tolist()
        m[r:r + 16, c:c + 16] = 1
        rr, cc = torch.randint(0, 13, (2,)).tolist()
        m[r + rr:r + rr + 3, c + cc:c + cc + 3] = 2
    level = torch.tensor([-1.0, 0.5, 1.3])[mask]
    image = (level + 0.45 * torch.randn(n, 32, 32)).unsqueeze(1).repeat(1, 3, 1, 1)
    return image + 0.3 * torch.randn_like(image), mask


def compute_iou(pred, target, n_classes):
    ious = []
    for cls in range(n_classes):
        pred_inds = (pred == cls)
        target_inds = (target == cls)
        intersection = (pred_inds & target_inds).sum().item()
        union = (pred_inds | target_inds).sum().item()
        ious.append(intersection / max(union, 1))
    return ious


x_train, y_train = synth(240)
x_val, y_val = synth(60)
train_loader = DataLoader(TensorDataset(x_train, y_train), batch_size=16, shuffle=True)
val_loader = DataLoader(TensorDataset(x_val, y_val), batch_size=30)

model = nn.Sequential(
    nn.Conv2d(3, 16, kernel_size=3, padding=1),
    nn.ReLU(),
    nn.Conv2d(16, 16, kernel_size=3, padding=1),
    nn.ReLU(),
    nn.Conv2d(16, num_classes, kernel_size=1))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.004)

for epoch in range(8):
    model.train()
    running = 0.0
    for images, masks in train_loader:
        optimizer.zero_grad()
        loss = criterion(model(images), masks)
        loss.backward()
        optimizer.step()
        running += loss.item()
    model.eval()
    preds = []
    with torch.no_grad():
        for images, masks in val_loader:
            preds.append(model(images).argmax(1))
    preds = torch.cat(preds)
    iou = compute_iou(preds, y_val, num_classes)
    recall = (preds[y_val == 2] == 2).float().mean().item()
    acc = (preds == y_val).float().mean().item()
    print(f"epoch {epoch} loss {running / len(train_loader):.3f} pixel acc {acc:.3f} "
          f"iou {[round(v, 3) for v in iou]} lesion recall {recall:.3f}")
