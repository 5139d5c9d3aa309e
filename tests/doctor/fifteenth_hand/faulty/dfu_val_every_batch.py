import os
import tempfile
import time

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)


def nyu_like(n, seed):
    g = torch.Generator().manual_seed(seed)
    coarse = torch.rand(n, 1, 5, 5, generator=g) * 3 + 1
    depth = nn.functional.interpolate(coarse, size=(24, 24), mode="bilinear", align_corners=True)
    shade = (depth - 2.5) / 1.5
    rgb = torch.cat([shade * a for a in (1.0, 0.6, -0.4)], dim=1) + 0.5 * torch.randn(n, 3, 24, 24, generator=g)
    keep = torch.rand(n, 1, 24, 24, generator=g) < 0.05
    return TensorDataset(rgb, depth * keep, depth)


class Net(nn.Module):
    def __init__(self, w=16):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(5, w, 3, padding=1), nn.ReLU(), nn.Conv2d(w, w, 3, padding=2, dilation=2), nn.ReLU(),
                                 nn.Conv2d(w, w, 3, padding=4, dilation=4), nn.ReLU(), nn.Conv2d(w, 1, 3, padding=1))

    def forward(self, rgb, dep):
        valid = (dep > 0).float()
        return 2.5 + self.net(torch.cat([rgb, (dep - 2.5) * valid, valid], dim=1))


@torch.no_grad()
def validate(net, loader):
    net.eval()
    se = ae = count = 0.0
    for rgb, dep, gt in loader:
        out = net(rgb, dep)
        se += ((out - gt) ** 2).sum().item()
        ae += (out - gt).abs().sum().item()
        count += gt.numel()
    net.train()
    return (se / count) ** 0.5, ae / count


def train(epochs=4):
    loader_train = DataLoader(nyu_like(320, 1), batch_size=16, shuffle=True, drop_last=True)
    loader_val = DataLoader(nyu_like(64, 2), batch_size=16, shuffle=False)
    loader_test = DataLoader(nyu_like(64, 3), batch_size=16, shuffle=False)
    net = Net()
    optimizer = optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-3)
    scheduler = optim.lr_scheduler.MultiStepLR(optimizer, milestones=[2, 3], gamma=0.5)
    best_rmse, best_path = float("inf"), os.path.join(tempfile.mkdtemp(), "best_model.pt")
    start, in_val, n_val = time.time(), 0.0, 0
    net.train()
    for epoch in range(1, epochs + 1):
        num_sample, total_loss = 0, 0.0
        for batch, (rgb, dep, gt) in enumerate(loader_train):
            optimizer.zero_grad()
            loss = (net(rgb, dep) - gt).abs().mean()
            loss.backward()
            optimizer.step()
            total_loss += loss.item() * rgb.shape[0]
            num_sample += rgb.shape[0]

            t = time.time()
            rmse, mae = validate(net, loader_val)
            in_val, n_val = in_val + time.time() - t, n_val + 1
            if rmse < best_rmse:
                best_rmse = rmse
                torch.save(net.state_dict(), best_path)
        print(f"epoch {epoch} loss {total_loss / num_sample:.4f} | val rmse {rmse:.4f} mae {mae:.4f} best {best_rmse:.4f}")
        scheduler.step()
    print(f"{time.time() - start:.1f} s of training, {in_val:.1f} s of them in {n_val} validations")
    net.load_state_dict(torch.load(best_path))
    print("test rmse %.4f mae %.4f" % validate(net, loader_test))


if __name__ == "__main__":
    train()
