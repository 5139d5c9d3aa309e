import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser(description='Structure from Motion Learner, row-wise toy scenes')
parser.add_argument('--epochs', default=8, type=int)
parser.add_argument('--lr', default=2e-3, type=float)
parser.add_argument('-b', '--batch-size', default=16, type=int)
parser.add_argument('-s', '--smooth-loss-weight', default=0.02, type=float)
parser.add_argument('--scheduler', default='step', choices=['none', 'step'])
parser.add_argument('--step-size', default=150, type=int)
parser.add_argument('--seed', default=0, type=int)


class SequenceFolder(Dataset):
    """Target frame, reference frame; near rows move more than far ones."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        coarse = torch.rand(n, 1, 5, 12, generator=g)
        wide = F.interpolate(coarse, (16, 48), mode='bicubic', align_corners=True)
        slope = 1 + 3 * torch.rand(n, 1, generator=g)
        self.disp = slope * torch.linspace(0.2, 1, 16)[None]
        x = torch.arange(32).float() + 8
        y = torch.linspace(-1, 1, 16)[None, :, None].expand(n, 16, 32)
        xs = x[None, None].expand(n, 16, 32)
        self.tgt = F.grid_sample(wide, torch.stack([xs / 23.5 - 1, y], -1), align_corners=True)
        xs = xs - self.disp[..., None]
        self.ref = F.grid_sample(wide, torch.stack([xs / 23.5 - 1, y], -1), align_corners=True)

    def __len__(self):
        return len(self.tgt)

    def __getitem__(self, i):
        return (self.tgt[i] - 0.5) / 0.29, (self.ref[i] - 0.5) / 0.29, self.disp[i]


class DispNetS(nn.Module):
    def __init__(self):
        super(DispNetS, self).__init__()
        self.conv1 = nn.Conv2d(2, 24, (3, 9), padding=(1, 4))
        self.conv2 = nn.Conv2d(24, 24, (3, 7), stride=(1, 2), padding=(1, 3))
        self.conv3 = nn.Conv2d(24, 24, (3, 5), stride=(1, 2), padding=(1, 2))
        self.predict_disp = nn.Conv2d(24, 1, 1)

    def forward(self, tgt, ref):
        x = F.relu(self.conv1(torch.cat([tgt, ref], 1)))
        x = F.relu(self.conv2(x))
        x = F.relu(self.conv3(x))
        x = self.predict_disp(x).mean(3)
        return 6 * torch.sigmoid(x).squeeze(1)


def inverse_warp(img, disp):
    b, _, h, w = img.shape
    x = torch.arange(w).float()[None, None] + disp[..., None]
    y = torch.linspace(-1, 1, h)[None, :, None].expand(b, h, w)
    valid = (x <= w - 1).unsqueeze(1)
    warped = F.grid_sample(img, torch.stack([2 * x / (w - 1) - 1, y], -1), align_corners=True)
    return warped, valid


def photometric_reconstruction_loss(tgt_img, ref_img, disp):
    warped, valid = inverse_warp(ref_img, disp)
    diff = (tgt_img - warped) * valid
    return diff.abs().sum() / valid.expand_as(diff).sum()


def smooth_loss(disp):
    second = disp[:, 2:] - 2 * disp[:, 1:-1] + disp[:, :-2]
    return second.abs().mean()


def train(args, train_loader, disp_net, optimizer, scheduler):
    disp_net.train()
    total, n = 0.0, 0
    for tgt_img, ref_img, _ in train_loader:
        disp = disp_net(tgt_img, ref_img)
        loss_1 = photometric_reconstruction_loss(tgt_img, ref_img, disp)
        loss = loss_1 + args.smooth_loss_weight * smooth_loss(disp)

        optimizer.zero_grad()
        loss.backward()
        if scheduler:
            scheduler.step()
        else:
            optimizer.step()
        total += loss.item() * len(tgt_img)
        n += len(tgt_img)
    return total / n


def validate(val_loader, disp_net):
    disp_net.eval()
    photo, error, n = 0.0, 0.0, 0
    with torch.no_grad():
        for tgt_img, ref_img, gt in val_loader:
            disp = disp_net(tgt_img, ref_img)
            photo += photometric_reconstruction_loss(tgt_img, ref_img, disp).item() * len(gt)
            error += (disp - gt).abs().mean().item() * len(gt)
            n += len(gt)
    return photo / n, error / n


def main():
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    train_loader = DataLoader(SequenceFolder(800, 1), batch_size=args.batch_size, shuffle=True)
    val_loader = DataLoader(SequenceFolder(160, 2), batch_size=80)
    disp_net = DispNetS()
    optimizer = torch.optim.Adam(disp_net.parameters(), args.lr, betas=(0.9, 0.999))
    scheduler = None
    if args.scheduler == 'step':
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=args.step_size, gamma=0.5)
    for epoch in range(args.epochs):
        train_loss = train(args, train_loader, disp_net, optimizer, scheduler)
        photo, error = validate(val_loader, disp_net)
        print(' * Epoch {} Avg Loss : {:.4f}  val photometric : {:.4f}  val disparity error : {:.3f} px'.format(
            epoch, train_loss, photo, error))


if __name__ == '__main__':
    main()
