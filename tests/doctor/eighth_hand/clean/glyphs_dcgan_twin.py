"""DCGAN on drawn glyphs, after the tutorial."""
import torch
import torch.nn as nn
import torch.optim as optim

nz, ngf, ndf, size = 16, 16, 16, 16
num_epochs, batch_size, lr, beta1 = 5, 32, 1e-3, 0.5
real_label, fake_label = 0.9, 0.0
torch.manual_seed(999)


def glyphs(count):
    images = -torch.ones(count, 1, size, size)
    for image in images:
        row, col = torch.randint(2, 10, (2,)).tolist()
        image[0, row : row + 4, 2:14] = 1
        image[0, 2:14, col : col + 3] = 1
    return images + 0.05 * torch.randn_like(images)


def weights_init(m):
    if isinstance(m, (nn.Conv2d, nn.ConvTranspose2d)):
        nn.init.normal_(m.weight, 0.0, 0.02)
    elif isinstance(m, nn.BatchNorm2d):
        nn.init.normal_(m.weight, 1.0, 0.02)
        nn.init.zeros_(m.bias)


netG = nn.Sequential(
    nn.ConvTranspose2d(nz, ngf * 2, 4, 1, 0, bias=False), nn.BatchNorm2d(ngf * 2), nn.ReLU(True),
    nn.ConvTranspose2d(ngf * 2, ngf, 4, 2, 1, bias=False), nn.BatchNorm2d(ngf), nn.ReLU(True),
    nn.ConvTranspose2d(ngf, 1, 4, 2, 1, bias=False), nn.Tanh(),
)
netD = nn.Sequential(
    nn.Conv2d(1, ndf, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(ndf, ndf * 2, 4, 2, 1, bias=False), nn.BatchNorm2d(ndf * 2), nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(ndf * 2, 1, 4, 1, 0, bias=False), nn.Flatten(0),
)
netG.apply(weights_init)
netD.apply(weights_init)

criterion = nn.BCEWithLogitsLoss()
fixed_noise = torch.randn(64, nz, 1, 1)
optimizerD = optim.Adam(netD.parameters(), lr=lr, betas=(beta1, 0.999))
optimizerG = optim.Adam(netG.parameters(), lr=lr, betas=(beta1, 0.999))
dataloader = torch.utils.data.DataLoader(glyphs(1024), batch_size=batch_size, shuffle=True)

for epoch in range(num_epochs):
    for i, real in enumerate(dataloader):
        # (1) update D: maximize log(D(x)) + log(1 - D(G(z)))
        netD.zero_grad()
        b_size = real.size(0)
        output = netD(real)
        errD_real = criterion(output, torch.full((b_size,), real_label))
        errD_real.backward()
        D_x = output.sigmoid().mean().item()

        noise = torch.randn(b_size, nz, 1, 1)
        fake = netG(noise)
        output = netD(fake.detach())
        errD_fake = criterion(output, torch.full((b_size,), fake_label))
        errD_fake.backward()
        D_G_z1 = output.sigmoid().mean().item()
        optimizerD.step()

        # (2) update G: maximize log(D(G(z)))
        netG.zero_grad()
        output = netD(fake)
        errG = criterion(output, torch.ones(b_size))
        errG.backward()
        D_G_z2 = output.sigmoid().mean().item()
        optimizerG.step()
    with torch.no_grad():
        sharp = netG(fixed_noise).abs().mean().item()
    print(f"[{epoch}/{num_epochs}] D {(errD_real + errD_fake).item():.4f} G {errG.item():.4f} D(x) {D_x:.3f} D(G(z)) {D_G_z1:.3f} / {D_G_z2:.3f}, sharp {sharp:.3f}")
