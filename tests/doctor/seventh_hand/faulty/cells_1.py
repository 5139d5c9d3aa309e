"""Segment cells in drawn micrographs with a small U-Net."""
import argparse
import random

import numpy as np
import torch
from torch.utils.data import DataLoader, random_split

from cells_1_parts.data import CellDataset, RandomFlip, RandomBrightness, Compose
from cells_1_parts.losses import BCEDiceLoss, dice_score
from cells_1_parts.nets import UNet


def get_args():
    parser = argparse.ArgumentParser(description="Train the UNet on images and target masks")
    parser.add_argument("--epochs", "-e", type=int, default=3)
    parser.add_argument("--batch-size", "-b", type=int, default=16)
    parser.add_argument("--learning-rate", "-l", type=float, default=2e-3)
    parser.add_argument("--validation", "-v", type=float, default=0.2)
    return parser.parse_args()


@torch.no_grad()
def evaluate(net, loader):
    net.eval()
    score, seen = 0.0, 0
    for images, masks in loader:
        predicted = (torch.sigmoid(net(images)) > 0.5).float()
        score += dice_score(predicted, masks) * len(images)
        seen += len(images)
    net.train()
    return score / max(seen, 1)


def train_net(net, args):
    dataset = CellDataset(160, seed=3, transform=Compose([RandomFlip(), RandomBrightness()]))  # <- here
    n_val = int(len(dataset) * args.validation)
    train_set, val_set = random_split(dataset, [len(dataset) - n_val, n_val], generator=torch.Generator().manual_seed(0))  # <- here

    train_loader = DataLoader(train_set, shuffle=True, drop_last=True, batch_size=args.batch_size)
    val_loader = DataLoader(val_set, shuffle=False, batch_size=16)  # <- here

    optimizer = torch.optim.Adam(net.parameters(), lr=args.learning_rate)
    criterion = BCEDiceLoss()
    for epoch in range(args.epochs):
        epoch_loss = 0.0
        for images, masks in train_loader:
            scores = net(images)
            loss = criterion(scores, masks)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            epoch_loss += loss.item() / len(train_loader)
        print(f"epoch {epoch + 1}: loss {epoch_loss:.3f}, dice {evaluate(net, val_loader):.3f}")


if __name__ == "__main__":
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    train_net(UNet(1, 1), get_args())
