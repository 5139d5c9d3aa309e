# One-shot detector for coloured squares, in the manner of YOLOv1
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(42)
S, C, SIZE = 4, 3, 32          # grid, classes, pixels
LAMBDA_COORD, LAMBDA_NOOBJ = 5.0, 0.5


def make_scene(g):
    image = 0.2 * torch.rand(3, SIZE, SIZE, generator=g)
    target = torch.zeros(S, S, 5 + C)
    for _ in range(int(torch.randint(1, 4, (1,), generator=g))):
        c = int(torch.randint(0, C, (1,), generator=g))
        w, h = (torch.rand(2, generator=g) * 6 + 4).tolist()
        cx = float(torch.rand((), generator=g)) * (SIZE - w) + w / 2
        cy = float(torch.rand((), generator=g)) * (SIZE - h) + h / 2
        image[c, int(cy - h / 2) : int(cy + h / 2), int(cx - w / 2) : int(cx + w / 2)] += 0.7
        i, j = int(cy / SIZE * S), int(cx / SIZE * S)
        target[i, j, 0] = 1.0
        target[i, j, 1:5] = torch.tensor([cx / SIZE * S - j, cy / SIZE * S - i, w / SIZE, h / SIZE])
        target[i, j, 5:] = F.one_hot(torch.tensor(c), C).float()
    return image - 0.3, target


def make_set(n, seed):
    g = torch.Generator().manual_seed(seed)
    images, targets = zip(*(make_scene(g) for _ in range(n)))
    return torch.utils.data.TensorDataset(torch.stack(images), torch.stack(targets))


class TinyYolo(nn.Module):
    def __init__(self):
        super().__init__()
        layers, c_in = [], 3
        for c_out in (16, 32, 64):
            layers += [nn.Conv2d(c_in, c_out, 3, padding=1, bias=False), nn.BatchNorm2d(c_out), nn.LeakyReLU(0.1), nn.MaxPool2d(2)]
            c_in = c_out
        self.features = nn.Sequential(*layers)
        self.detect = nn.Conv2d(64, 5 + C, 1)

    def forward(self, x):
        out = self.detect(self.features(x)).permute(0, 2, 3, 1)
        obj, box, cls = out[..., 0], out[..., 1:5].sigmoid(), out[..., 5:]
        return obj, box, cls


def yolo_loss(pred, target):
    obj, box, cls = pred
    mask = target[..., 0] == 1
    l_obj = F.binary_cross_entropy_with_logits(obj[mask], torch.ones_like(obj[mask]))
    l_noobj = F.binary_cross_entropy_with_logits(obj[~mask], torch.zeros_like(obj[~mask]))
    l_box = F.mse_loss(box[mask][:, :2], target[mask][:, 1:3]) + F.mse_loss(box[mask][:, 2:].sqrt(), target[mask][:, 3:5].sqrt())
    l_cls = F.cross_entropy(cls[mask], target[mask][:, 5:].argmax(1))
    parts = [l_obj, LAMBDA_NOOBJ * l_noobj, LAMBDA_COORD * l_box, l_cls]
    parts = torch.stack(parts)
    return (parts * torch.exp(-log_vars) + log_vars).sum()


train_loader = torch.utils.data.DataLoader(make_set(768, 1), batch_size=32, shuffle=True)
test_set = make_set(128, 2)
model = TinyYolo()
log_vars = nn.Parameter(torch.zeros(4))
optimizer = torch.optim.Adam([*model.parameters(), log_vars], lr=2e-3)

for epoch in range(5):
    model.train()
    total = 0.0
    for images, targets in train_loader:
        loss = yolo_loss(model(images), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(images)
    model.eval()
    with torch.no_grad():
        images, targets = test_set.tensors
        obj, box, cls = model(images)
        mask = targets[..., 0] == 1
        recall = (obj[mask] > 0).float().mean().item()
        right = (cls[mask].argmax(1) == targets[mask][:, 5:].argmax(1)).float().mean().item()
    print(f"epoch {epoch}: loss {total / 768:.3f} recall {recall:.2f} classes {right:.2f}")
