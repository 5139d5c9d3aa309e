import torch
from torch import nn
from torch.nn import functional as F


class DoubleConv(nn.Sequential):
    def __init__(self, cin, cout):
        layers = []
        for a in (cin, cout):
            layers += [nn.Conv2d(a, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True)]
        super().__init__(*layers)


class UNet(nn.Module):
    def __init__(self, n_channels, n_classes, width=8):
        super().__init__()
        self.inc, self.down1, self.down2 = DoubleConv(n_channels, width), DoubleConv(width, 2 * width), DoubleConv(2 * width, 4 * width)
        self.up1, self.up2 = DoubleConv(6 * width, 2 * width), DoubleConv(3 * width, width)
        self.outc = nn.Conv2d(width, n_classes, 1)

    def forward(self, x):
        x1 = self.inc(x)
        x2 = self.down1(F.max_pool2d(x1, 2))
        x3 = self.down2(F.max_pool2d(x2, 2))
        x = self.up1(torch.cat([F.interpolate(x3, scale_factor=2), x2], dim=1))
        x = self.up2(torch.cat([F.interpolate(x, scale_factor=2), x1], dim=1))
        return self.outc(x)
