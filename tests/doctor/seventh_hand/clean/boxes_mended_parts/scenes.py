"""Scenes: a filled rectangle of one of three colours, and where it lies as centre and size."""
import torch


def draw(count, size, seed):
    generator = torch.Generator().manual_seed(seed)
    images = 0.5 * torch.randn(count, 3, size, size, generator=generator)
    labels = torch.randint(0, 3, (count,), generator=generator)
    extent = torch.randint(6, 14, (count, 2), generator=generator)
    corner = (torch.rand(count, 2, generator=generator) * (size - extent)).long()
    for image, label, (x, y), (w, h) in zip(images, labels, corner.tolist(), extent.tolist()):
        image[label, y : y + h, x : x + w] += 1.5
    boxes = torch.cat([corner + extent / 2, extent.float()], dim=1) / size
    return images, labels, boxes
