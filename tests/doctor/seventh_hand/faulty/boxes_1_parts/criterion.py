"""The losses of a detector, by name."""
import torch.nn.functional as F
from torch import nn


class SetCriterion(nn.Module):
    def __init__(self, weight_dict):
        super().__init__()
        self.weight_dict = weight_dict

    def loss_labels(self, outputs, labels):
        return F.cross_entropy(outputs["pred_logits"], labels)

    def loss_boxes(self, outputs, boxes):
        return F.l1_loss(outputs["pred_boxes"], boxes)  # <- here

    def forward(self, outputs, labels, boxes):
        return {"loss_ce": self.loss_labels(outputs, labels), "loss_bbox": self.loss_boxes(outputs, boxes)}
