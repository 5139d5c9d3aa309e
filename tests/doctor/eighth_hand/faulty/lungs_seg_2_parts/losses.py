import torch
from torch import nn
from torch.nn import functional as F


class BCEDiceLoss(nn.Module):
    def __init__(self, smooth=1.0):
        super().__init__()
        self.bce, self.smooth = nn.BCEWithLogitsLoss(), smooth

    def forward(self, logits, target):
        probs = torch.sigmoid(logits)
        overlap = 2 * (probs * target).sum() + self.smooth
        dice = 1 - overlap / (probs.sum() + target.sum() + self.smooth)
        return self.bce(logits, target) + dice  # <- here


def dice_coeff(logits, target):
    predicted = (torch.sigmoid(logits) > 0.5).float()
    return (predicted * target).sum(), predicted.sum() + target.sum()
