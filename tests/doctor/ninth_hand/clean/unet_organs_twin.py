"""Three organs in small scans: cross-entropy and soft Dice together."""
import torch
from torch.utils.data import DataLoader

from unet_organs_twin_parts.scans import Scans
from unet_organs_twin_parts.losses import dice_loss, hard_dice, mean_iou
from unet_organs_twin_parts.unet import UNet

torch.manual_seed(0)
CLASSES = 3


def main():
    train, valid = Scans(480, seed=1, augment=True), Scans(96, seed=2)
    loader = DataLoader(train, 16, shuffle=True)
    valid_loader = DataLoader(valid, 32)
    model = UNet(1, CLASSES)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    ce = torch.nn.CrossEntropyLoss()
    for epoch in range(3):
        model.train()
        for scan, mask in loader:
            logits = model(scan)
            loss = ce(logits, mask) + dice_loss(logits, mask, CLASSES)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            overlap = hard_dice(logits, mask, CLASSES)
        model.eval()
        with torch.inference_mode():
            logits, masks = zip(*((model(scan), mask) for scan, mask in valid_loader))
        print(f"epoch {epoch} loss {loss.item():.3f} dice {overlap:.3f} iou {mean_iou(torch.cat(logits), torch.cat(masks), CLASSES):.3f}")


if __name__ == "__main__":
    main()
