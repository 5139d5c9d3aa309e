import torch
import torch.nn as nn
import torch.autograd as autograd
from torch.optim import Adam

torch.manual_seed(0)

# hyper params
z_dim = 4
batch = 128
n_critic = 5
lambda_gp = 1
iterations = 240

# ---------------------
#  Data: two arms
# ---------------------
def sample_real(n):
    t = 0.5 + 2.0 * torch.rand(n)
    arm = torch.randint(0, 2, (n,)) * torch.pi
    pts = torch.stack([t * torch.cos(2 * t + arm), t * torch.sin(2 * t + arm)], 1) / 2.0
    return pts + 0.03 * torch.randn(n, 2)


class Generator(nn.Module):
    def __init__(self):
        super(Generator, self).__init__()
        self.model = nn.Sequential(
            nn.Linear(z_dim, 64), nn.ReLU(),
            nn.Linear(64, 64), nn.ReLU(),
            nn.Linear(64, 2),
        )

    def forward(self, z):
        return self.model(z)


class Critic(nn.Module):
    def __init__(self):
        super(Critic, self).__init__()
        self.model = nn.Sequential(
            nn.Linear(2, 64), nn.LeakyReLU(0.2),
            nn.Linear(64, 64), nn.LeakyReLU(0.2),
            nn.Linear(64, 1),
        )

    def forward(self, x):
        return self.model(x)


def gradient_penalty(D, real, fake):
    alpha = torch.rand(real.size(0), 1)
    mixed = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
    scores = D(mixed)
    grads = autograd.grad(
        outputs=scores,
        inputs=mixed,
        grad_outputs=torch.ones_like(scores),
        create_graph=True,
        retain_graph=True,
    )[0]
    return ((grads.norm(2, dim=1) - 1) ** 2).mean()


def sliced_distance(a, b, n_proj=64):
    """sliced Wasserstein distance of two clouds of the same size"""
    dirs = torch.randn(2, n_proj)
    dirs = dirs / dirs.norm(dim=0, keepdim=True)
    pa, pb = (a @ dirs).sort(dim=0)[0], (b @ dirs).sort(dim=0)[0]
    return (pa - pb).abs().mean().item()


generator = Generator()
critic = Critic()
optimizer_G = Adam(generator.parameters(), lr=5e-4, betas=(0.0, 0.9))
optimizer_D = Adam(critic.parameters(), lr=1e-3, betas=(0.0, 0.9))

for it in range(iterations):
    # ---------------------
    #  Train critic
    # ---------------------
    for _ in range(n_critic):
        real = sample_real(batch)
        z = torch.randn(batch, z_dim)
        fake = generator(z).detach()
        optimizer_D.zero_grad()
        wasserstein = critic(real).mean() - critic(fake).mean()
        gp = gradient_penalty(critic, real, fake)
        d_loss = -wasserstein + lambda_gp * gp
        d_loss.backward()
        optimizer_D.step()

    # ---------------------
    #  Train generator
    # ---------------------
    optimizer_G.zero_grad()
    z = torch.randn(batch, z_dim)
    g_loss = -critic(generator(z)).mean()
    g_loss.backward()
    optimizer_G.step()

    if (it + 1) % 40 == 0:
        with torch.no_grad():
            dist = sliced_distance(generator(torch.randn(1000, z_dim)), sample_real(1000))
        print("[%d/%d] W %.3f gp %.4f G %.3f sliced distance %.4f" % (it + 1, iterations, wasserstein.item(), gp.item(), g_loss.item(), dist))
