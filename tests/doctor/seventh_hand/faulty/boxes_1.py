"""Find one object in a picture: what it is, and its box."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from boxes_1_parts.criterion import SetCriterion
from boxes_1_parts.scenes import draw

CONFIG = {"size": 32, "classes": 3, "epochs": 4, "batch_size": 32, "lr": 1e-3, "weights": {"loss_ce": 1.0, "loss_bbox": 5.0}}


class Detector(nn.Module):
    def __init__(self, classes, width=16):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, width, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(2 * width, 2 * width, 3, stride=2, padding=1), nn.ReLU(),
            nn.Flatten(),
            nn.Linear(2 * width * 16, 64), nn.ReLU(),
        )
        self.class_embed = nn.Linear(64, classes)
        self.bbox_embed = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))

    def forward(self, images):
        hidden = self.body(images)
        return {"pred_logits": self.class_embed(hidden), "pred_boxes": self.bbox_embed(hidden).sigmoid()}  # <- here


def train_one_epoch(model, criterion, loader, optimizer):
    model.train()
    shown = []
    for images, labels, boxes in loader:
        outputs = model(images)
        loss_dict = criterion(outputs, labels, boxes)
        losses = sum(loss_dict[name] * criterion.weight_dict[name] for name in loss_dict)
        optimizer.zero_grad()
        losses.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        shown.append(losses.item())
    return sum(shown) / len(shown)


@torch.no_grad()
def evaluate(model, images, labels, boxes, size):
    model.eval()
    outputs = model(images)
    accuracy = (outputs["pred_logits"].argmax(-1) == labels).float().mean()
    scale = boxes.max() if boxes.max() > 1 else 1.0
    return accuracy.item(), ((outputs["pred_boxes"] - boxes) / scale).abs().mean().item() * size


def main():
    torch.manual_seed(11)
    size = CONFIG["size"]
    images, labels, boxes = draw(640, size, seed=0)
    held_images, held_labels, held_boxes = draw(128, size, seed=1)
    loader = DataLoader(TensorDataset(images, labels, boxes), CONFIG["batch_size"], shuffle=True)
    model = Detector(CONFIG["classes"])
    criterion = SetCriterion(CONFIG["weights"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=CONFIG["lr"], weight_decay=1e-4)
    for epoch in range(CONFIG["epochs"]):
        loss = train_one_epoch(model, criterion, loader, optimizer)
        accuracy, off = evaluate(model, held_images, held_labels, held_boxes, size)
        print(f"epoch {epoch}: {loss:.3f}, classes {accuracy:.1%}, boxes off by {off:.2f} pixels")


if __name__ == "__main__":
    main()
