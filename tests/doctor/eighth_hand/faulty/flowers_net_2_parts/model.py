import torch
from torch import nn


class ConvBNAct(nn.Sequential):
    def __init__(self, cin, cout, stride=1):
        super().__init__(nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True))


class FlowerNet(nn.Module):
    def __init__(self, num_classes, dropout):
        super().__init__()
        self.features = nn.Sequential(ConvBNAct(3, 24, 2), ConvBNAct(24, 48, 2), ConvBNAct(48, 64))
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(64 * 16, num_classes)

    def forward(self, x):
        x = self.features(x)
        return self.head(self.drop(torch.flatten(x, 1)))
