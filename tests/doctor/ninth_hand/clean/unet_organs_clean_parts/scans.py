import torch
from torch.utils.data import Dataset


class Scans(Dataset):
    """Scans of [1, 24, 24] and masks of [24, 24]: 0 is the body, 1 a disc on the left, 2 a bar on the right."""

    def __init__(self, n, seed, augment=False):
        g = torch.Generator().manual_seed(seed)
        yy, xx = torch.meshgrid(torch.arange(24.0), torch.arange(24.0), indexing="ij")
        self.masks = torch.zeros(n, 24, 24, dtype=torch.long)
        for i in range(n):
            cy, cx, r = (torch.rand(3, generator=g) * torch.tensor([10.0, 5.0, 3.0]) + torch.tensor([7.0, 5.0, 3.0])).tolist()
            self.masks[i][(yy - cy) ** 2 + (xx - cx) ** 2 < r * r] = 1
            top, left = torch.randint(2, 10, (1,), generator=g).item(), torch.randint(15, 19, (1,), generator=g).item()
            self.masks[i][top : top + 11, left : left + 4] = 2
        level = torch.tensor([0.0, 0.9, -0.8])
        self.scans = level[self.masks].unsqueeze(1) + 0.5 * torch.randn(n, 1, 24, 24, generator=g)
        self.augment = augment

    def __len__(self):
        return len(self.scans)

    def __getitem__(self, index):
        scan, mask = self.scans[index], self.masks[index]
        if self.augment and torch.rand(()) < 0.5:
            scan = scan.flip(-1)
            mask = mask.flip(-1)
        return scan, mask
