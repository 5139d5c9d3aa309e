"""python train.py: small style-based GAN on 8x8 blobs, distributed data loading."""
import argparse
import os
import tempfile

import torch
import torch.distributed as dist
from torch import autograd, nn, optim
from torch.nn import functional as F
from torch.utils import data


def requires_grad(model, flag=True):
    for p in model.parameters():
        p.requires_grad = flag


def accumulate(model1, model2, decay=0.98):
    par1, par2 = dict(model1.named_parameters()), dict(model2.named_parameters())
    for k in par1.keys():
        par1[k].data.mul_(decay).add_(par2[k].data, alpha=1 - decay)


class BlobDataset(data.Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        grid = torch.arange(8.0)
        cx, cy = 1.5 + 5 * torch.rand(2, n, 1, 1, generator=g)
        width = 0.8 + 0.8 * torch.rand(n, 1, 1, generator=g)
        img = torch.exp(-((grid[None, None] - cx) ** 2 + (grid[None, :, None] - cy) ** 2) / (2 * width ** 2))
        self.images = (img * 2 - 1).unsqueeze(1)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index]


def sample_data(loader):
    epoch = 0
    while True:
        loader.sampler.set_epoch(epoch)
        for batch in loader:
            yield batch
        epoch += 1


class Generator(nn.Module):
    def __init__(self, style_dim=16):
        super().__init__()
        self.style = nn.Sequential(nn.Linear(style_dim, 48), nn.LeakyReLU(0.2), nn.Linear(48, 48), nn.LeakyReLU(0.2))
        self.to_rgb = nn.Sequential(nn.Linear(48, 96), nn.LeakyReLU(0.2), nn.Linear(96, 64), nn.Tanh())

    def forward(self, z):
        return self.to_rgb(self.style(z)).view(-1, 1, 8, 8)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(16, 32, 3, 2, 1),
                                   nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(128, 1))

    def forward(self, x):
        return self.convs(x)


def d_logistic_loss(real_pred, fake_pred):
    return F.softplus(-real_pred).mean() + F.softplus(fake_pred).mean()


def d_r1_loss(real_pred, real_img):
    (grad_real,) = autograd.grad(outputs=real_pred.sum(), inputs=real_img, create_graph=True)
    return grad_real.pow(2).reshape(grad_real.shape[0], -1).sum(1).mean()


def evaluate(g_ema, real, latent):
    g_ema.eval()
    with torch.no_grad():
        fake = g_ema(torch.randn(len(real), latent, generator=torch.Generator().manual_seed(7)))
    fake, real = fake.flatten(1), real.flatten(1)
    mean_gap = (fake.mean(0) - real.mean(0)).pow(2).sum()
    cov_gap = (torch.cov(fake.T) - torch.cov(real.T)).pow(2).sum()
    return mean_gap.item(), cov_gap.item()


def train(args, loader, test_images, generator, discriminator, g_optim, d_optim, g_ema):
    loader = sample_data(loader)
    for i in range(1, args.iter + 1):
        real_img = next(loader)

        requires_grad(generator, False)
        requires_grad(discriminator, True)
        fake_img = generator(torch.randn(args.batch, args.latent))
        d_loss = d_logistic_loss(discriminator(real_img), discriminator(fake_img))
        if i % args.d_reg_every == 0:
            real_img.requires_grad = True
            r1_loss = d_r1_loss(discriminator(real_img), real_img)
            d_loss = d_loss + args.r1 / 2 * r1_loss * args.d_reg_every
        d_optim.zero_grad()
        d_loss.backward()
        d_optim.step()

        requires_grad(generator, True)
        requires_grad(discriminator, False)
        fake_img = generator(torch.randn(args.batch, args.latent))
        g_loss = F.softplus(-discriminator(fake_img)).mean()
        g_optim.zero_grad()
        g_loss.backward()
        g_optim.step()
        accumulate(g_ema, generator)

        if i % 150 == 0:
            gaps = evaluate(g_ema, test_images, args.latent)
            print(f"{i}: d: {d_loss.item():.4f}; g: {g_loss.item():.4f}; mean gap: {gaps[0]:.3f}; cov gap: {gaps[1]:.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--iter", type=int, default=600)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--latent", type=int, default=16)
    parser.add_argument("--r1", type=float, default=0.5)
    parser.add_argument("--d_reg_every", type=int, default=4)
    args = parser.parse_args()

    torch.manual_seed(3)
    init_file = os.path.join(tempfile.mkdtemp(), "init")
    dist.init_process_group("gloo", init_method=f"file://{init_file}", rank=0, world_size=1)

    generator, discriminator, g_ema = Generator(), Discriminator(), Generator()
    g_ema.load_state_dict(generator.state_dict())
    g_optim = optim.Adam(generator.parameters(), lr=0.002, betas=(0.5, 0.99))
    d_optim = optim.Adam(discriminator.parameters(), lr=0.002, betas=(0.5, 0.99))
    dataset = BlobDataset(512, seed=1)
    loader = data.DataLoader(dataset, batch_size=args.batch,
                             sampler=data.distributed.DistributedSampler(dataset, shuffle=True), drop_last=True)
    test_images = BlobDataset(512, seed=2).images
    train(args, loader, test_images, generator, discriminator, g_optim, d_optim, g_ema)
    dist.destroy_process_group()
