"""A one-stage detector of wheat heads: a grid of cells, each with an objectness, a box and a kind."""
import torch
from torch import nn

GRID, CELL, KINDS = 4, 8, 3
LAMBDA_COORD, LAMBDA_NOOBJ = 5.0, 0.5


def scenes(count, seed):
    own = torch.Generator().manual_seed(seed)
    images = 0.3 * torch.randn(count, 3, GRID * CELL, GRID * CELL, generator=own)
    target = torch.zeros(count, GRID, GRID, 6)  # objectness, x, y, w, h, kind
    for image, cells in zip(images, target):
        for _ in range(2):
            row, col = torch.randint(0, GRID, (2,), generator=own).tolist()
            x, y = (0.25 + 0.5 * torch.rand(2, generator=own)).tolist()
            w, h = (3 + 4 * torch.rand(2, generator=own)).tolist()
            kind = int(torch.randint(0, KINDS, (1,), generator=own))
            cy, cx = (row + y) * CELL, (col + x) * CELL
            top, left = int(max(cy - h / 2, 0)), int(max(cx - w / 2, 0))
            image[kind, top : int(cy + h / 2) + 1, left : int(cx + w / 2) + 1] += 1.5
            cells[row, col] = torch.tensor([1.0, x, y, w / 8, h / 8, kind])
    return images, target


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(24, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 48, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        )
        self.head = nn.Conv2d(48, 5 + KINDS, 1)

    def forward(self, images):
        return self.head(self.backbone(images)).permute(0, 2, 3, 1)


class DetectionLoss(nn.Module):
    def forward(self, output, target):
        obj_mask = target[..., 0] == 1
        noobj_mask = ~obj_mask
        positives = obj_mask.sum().clamp(min=1)

        bce = nn.functional.binary_cross_entropy_with_logits(output[..., 0], target[..., 0], reduction="none")
        obj_loss = bce[obj_mask].sum() / positives
        noobj_loss = bce[noobj_mask].mean()

        boxes = output[obj_mask][:, 1:5]
        box_loss = nn.functional.mse_loss(boxes.sigmoid(), target[obj_mask][:, 1:5], reduction="sum") / positives
        cls_loss = nn.functional.cross_entropy(output[obj_mask][:, 5:], target[obj_mask][:, 5].long())

        total = obj_loss + LAMBDA_NOOBJ * noobj_loss + LAMBDA_COORD * box_loss
        total = total + cls_loss
        return total, {"obj": obj_loss.item(), "box": box_loss.item(), "cls": cls_loss.item()}


def train():
    torch.manual_seed(12)
    images, target = scenes(512, 1)
    held_images, held_target = scenes(128, 2)
    model, criterion = Detector(), DetectionLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(12):
        model.train()
        for batch in torch.randperm(len(images)).split(32):
            loss, parts = criterion(model(images[batch]), target[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            output = model(held_images)
            there = held_target[..., 0] == 1
            kinds = (output[there][:, 5:].argmax(-1) == held_target[there][:, 5]).float().mean()
            off = (output[there][:, 1:5].sigmoid() - held_target[there][:, 1:5]).abs().mean()
        if epoch % 3 == 2:
            print(f"epoch {epoch}: {parts}, kinds right {kinds:.3f}, boxes off by {off:.4f}")


if __name__ == "__main__":
    train()
