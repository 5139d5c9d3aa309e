import torch
from torch import nn


def block(c_in, c_out):
    return nn.Sequential(
        nn.Conv2d(c_in, c_out, 3, padding=1, bias=False), nn.BatchNorm2d(c_out), nn.ReLU(inplace=True),
        nn.Conv2d(c_out, c_out, 3, padding=1, bias=False), nn.BatchNorm2d(c_out), nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    def __init__(self, c_in, classes, width=8):
        super().__init__()
        self.down1, self.down2 = block(c_in, width), block(width, 2 * width)
        self.pool = nn.MaxPool2d(2)
        self.middle = block(2 * width, 2 * width)
        self.up2 = nn.ConvTranspose2d(2 * width, 2 * width, 2, stride=2)
        self.dec2 = block(4 * width, width)
        self.up1 = nn.ConvTranspose2d(width, width, 2, stride=2)
        self.dec1 = block(2 * width, width)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        d1 = self.down1(x)
        d2 = self.down2(self.pool(d1))
        x = self.middle(self.pool(d2))
        x = self.dec2(torch.cat([self.up2(x), d2], dim=1))
        x = self.dec1(torch.cat([self.up1(x), d1], dim=1))
        return self.head(x)
