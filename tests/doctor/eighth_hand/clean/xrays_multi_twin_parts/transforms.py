import numpy as np
import torch


class Compose:
    def __init__(self, steps):
        self.steps = steps

    def __call__(self, image):
        for step in self.steps:
            image = step(image)
        return image


class RandomCrop:
    def __init__(self, size, padding):
        self.size, self.padding = size, padding

    def __call__(self, image):
        image = np.pad(image, self.padding, mode="reflect")
        top, left = torch.randint(0, 2 * self.padding + 1, (2,)).tolist()
        return image[top : top + self.size, left : left + self.size]


class RandomHorizontalFlip:
    def __call__(self, image):
        return image[:, ::-1].copy() if torch.rand(1) < 0.5 else image


class ToTensor:
    def __call__(self, image):
        return torch.from_numpy(np.ascontiguousarray(image))[None].float() / 255


class Normalize:
    def __init__(self, mean, std):
        self.mean, self.std = mean, std

    def __call__(self, tensor):
        return (tensor - self.mean) / self.std
