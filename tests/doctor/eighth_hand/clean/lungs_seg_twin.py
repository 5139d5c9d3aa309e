import argparse

import torch
from torch import optim
from torch.utils.data import DataLoader, random_split

from lungs_seg_twin_parts.dataset import LungDataset
from lungs_seg_twin_parts.losses import BCEDiceLoss, dice_coeff
from lungs_seg_twin_parts.unet import UNet


def evaluate(net, loader):
    net.eval()
    inter, union = 0.0, 0.0
    with torch.no_grad():
        for image, mask in loader:
            i, u = dice_coeff(net(image), mask)
            inter, union = inter + i, union + u
    net.train()
    return (2 * inter / union.clamp(min=1)).item()


def get_args():
    parser = argparse.ArgumentParser(description="Train the UNet on images and target masks")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=12)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--validation", type=float, default=0.2)
    return parser.parse_args()


if __name__ == "__main__":
    args = get_args()
    torch.manual_seed(5)
    dataset = LungDataset(240)
    n_val = int(len(dataset) * args.validation)
    train_set, val_set = random_split(dataset, [len(dataset) - n_val, n_val], generator=torch.Generator().manual_seed(0))
    train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True)
    val_loader = DataLoader(val_set, batch_size=args.batch_size)

    net = UNet(n_channels=1, n_classes=1)
    criterion = BCEDiceLoss()
    optimizer = optim.RMSprop(net.parameters(), lr=args.learning_rate, weight_decay=1e-8, momentum=0.5)
    for epoch in range(args.epochs):
        epoch_loss = 0.0
        for image, mask in train_loader:
            masks_pred = net(image)
            loss = criterion(masks_pred, mask)
            epoch_loss += loss.item()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
        print(f"Epoch {epoch + 1}: loss {epoch_loss / len(train_loader):.4f}, Validation Dice {evaluate(net, val_loader):.4f}")
