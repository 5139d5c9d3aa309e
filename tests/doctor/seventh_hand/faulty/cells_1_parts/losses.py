"""Losses and scores for masks."""
import torch
from torch import nn


def dice_score(predicted, target, eps=1e-6):
    inter = (predicted * target).sum((1, 2, 3))
    total = predicted.sum((1, 2, 3)) + target.sum((1, 2, 3))
    return ((2 * inter + eps) / (total + eps)).mean().item()


class BCEDiceLoss(nn.Module):
    """Binary cross-entropy, and the overlap that it does not see."""

    def __init__(self, weight=0.5, smooth=1.0):
        super().__init__()
        self.bce = nn.BCEWithLogitsLoss()
        self.weight, self.smooth = weight, smooth

    def forward(self, logits, target):
        logits = logits.squeeze(1)
        target = target.squeeze(1)
        probability = torch.sigmoid(logits)
        inter = (probability * target).sum((1, 2))
        dice = (2 * inter + self.smooth) / (probability.sum((1, 2)) + target.sum((1, 2)) + self.smooth)
        return self.weight * self.bce(logits, target) + (1 - self.weight) * (1 - dice.mean())
