import torch
from torch import nn

torch.manual_seed(0)
N_ATOMS, N_FEAT, T = 8, 4, 100
betas = torch.linspace(1e-4, 0.05, T)
alphas_bar = torch.cumprod(1 - betas, dim=0)


def draw_ligands(n, generator=None):
    """Rings of atoms of two kinds, turned at random."""
    angle = torch.arange(N_ATOMS) * 2 * torch.pi / N_ATOMS
    turn = torch.rand(n, 1, generator=generator) * 2 * torch.pi
    pos = torch.stack([(angle + turn).cos(), (angle + turn).sin(), 0.1 * torch.randn(n, N_ATOMS, generator=generator)], dim=-1)
    kind = torch.randint(0, N_FEAT, (n, 1), generator=generator).expand(n, N_ATOMS)
    return pos, nn.functional.one_hot(kind, N_FEAT).float()


class MDM(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.inp = nn.Linear(3 + N_FEAT + 1, d)
        self.edge_local, self.edge_global = (nn.Sequential(nn.Linear(2 * d + 1, d), nn.SiLU(), nn.Linear(d, d)) for _ in range(2))
        self.pos_local, self.pos_global, self.node_head = nn.Linear(d, 3), nn.Linear(d, 3), nn.Linear(2 * d, N_FEAT)

    def messages(self, net, h, dist, mask):
        n = h.shape[1]
        pair = torch.cat([h[:, :, None].expand(-1, -1, n, -1), h[:, None].expand(-1, n, -1, -1), dist[..., None]], dim=-1)
        return (net(pair) * mask[..., None]).sum(2) / mask.sum(2, keepdim=True).clamp(min=1)

    def net(self, pos, node, t):
        h = self.inp(torch.cat([pos, node, (t / T).view(-1, 1, 1).expand(-1, N_ATOMS, 1)], dim=-1))
        dist = torch.cdist(pos, pos)
        near = (dist < 1.0).float()
        loc = self.messages(self.edge_local, h, dist, near)
        glo = self.messages(self.edge_global, h, dist, 1 - near)
        return self.pos_global(glo), self.pos_local(loc), self.node_head(torch.cat([loc, glo], dim=-1))

    def get_diffusion_loss(self, pos, node, generator=None):
        t = torch.randint(0, T, (pos.shape[0],), generator=generator)
        a = alphas_bar[t].view(-1, 1, 1)
        pos_noise, node_noise = torch.randn(pos.shape, generator=generator), torch.randn(node.shape, generator=generator)
        pos_t, node_t = a.sqrt() * pos + (1 - a).sqrt() * pos_noise, a.sqrt() * node + (1 - a).sqrt() * node_noise
        pos_eq_global, pos_eq_local, node_eq = self.net(pos_t, node_t, t.float())
        loss_pos = nn.functional.mse_loss(pos_eq_global + pos_eq_local, pos_noise)
        loss_node = nn.functional.mse_loss(node_eq, node_noise)
        loss = loss_pos + loss_node
        with torch.no_grad():
            loss_global = nn.functional.mse_loss(pos_eq_global, pos_noise)
            loss_local = nn.functional.mse_loss(pos_eq_local, pos_noise)
        return loss, loss_global, loss_local, loss_node


@torch.no_grad()
def validate(model, it):
    model.eval()
    g = torch.Generator().manual_seed(5)
    losses = torch.tensor([[v.item() for v in model.get_diffusion_loss(*draw_ligands(64, g), generator=g)] for _ in range(4)])
    loss, loss_global, loss_local, loss_node = losses.mean(0).tolist()
    print(f"[Validate] Iter {it:04d} | Loss {loss:.4f} | Global {loss_global:.4f} | Local {loss_local:.4f} | Node {loss_node:.4f}")


def main(iters=240, batch_size=32):
    model = MDM()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, iters)
    for it in range(1, iters + 1):
        model.train()
        loss, loss_global, loss_local, loss_node = model.get_diffusion_loss(*draw_ligands(batch_size))
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        scheduler.step()
        if it % 40 == 0:
            print(f"[Train] Iter {it:04d} | Loss {loss.item():.4f} | Global {loss_global.item():.4f} | Local {loss_local.item():.4f} | "
                  f"Node {loss_node.item():.4f} | Grad {norm.item():.2f}")
        if it % 120 == 0:
            validate(model, it)


if __name__ == "__main__":
    main()
