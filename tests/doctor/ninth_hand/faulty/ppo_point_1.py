"""PPO on a point mass that must come to rest at the origin. Vectorised: 16 points at once."""
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributions import Normal

torch.manual_seed(7)


@dataclass
class Config:
    envs: int = 16
    horizon: int = 32
    iterations: int = 25
    epochs: int = 4
    minibatch: int = 128
    gamma: float = 0.97
    lam: float = 0.95
    clip: float = 0.2
    lr: float = 1e-3


class PointMass:
    def __init__(self, n):
        self.n = n

    def reset(self):
        self.state = torch.empty(self.n, 2).uniform_(-1, 1)
        return self.state

    def step(self, force):
        pos, vel = self.state.unbind(1)
        vel = 0.9 * vel + 0.2 * force.squeeze(1).clamp(-1, 1)
        pos = (pos + 0.2 * vel).clamp(-2, 2)
        self.state = torch.stack([pos, vel], 1)
        return self.state, -(pos.abs() + 0.1 * vel.abs())


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.mu = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))
        self.v = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))
        self.log_std = nn.Parameter(torch.full((1,), -0.5))

    def forward(self, obs):
        return Normal(self.mu(obs), self.log_std.exp()), self.v(obs)  # <- here


def rollout(env, model, cfg):
    obs, act, logp, rew, val = [], [], [], [], []
    state = env.reset()
    for _ in range(cfg.horizon):
        with torch.no_grad():
            dist, v = model(state)
            v = v.squeeze(-1)
            a = dist.sample()
            lp = dist.log_prob(a).sum(-1)
        obs.append(state); act.append(a); logp.append(lp); val.append(v)
        state, r = env.step(a)
        rew.append(r)
    with torch.no_grad():
        val.append(model(state)[1].squeeze(-1))
    adv, last = [], torch.zeros(cfg.envs)
    for t in reversed(range(cfg.horizon)):
        delta = rew[t] + cfg.gamma * val[t + 1] - val[t]
        last = delta + cfg.gamma * cfg.lam * last
        adv.insert(0, last)
    adv = torch.stack(adv)
    ret = adv + torch.stack(val[:-1])
    flat = lambda xs: torch.stack(xs).flatten(0, 1) if isinstance(xs, list) else xs.flatten()
    return flat(obs), flat(act), flat(logp), adv.flatten(), ret.flatten(), torch.stack(rew).mean().item()


def main(cfg=Config()):
    env, model = PointMass(cfg.envs), ActorCritic()
    optim = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    for it in range(cfg.iterations):
        obs, act, logp_old, adv, ret, score = rollout(env, model, cfg)
        adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        for _ in range(cfg.epochs):
            for idx in torch.randperm(len(obs)).split(cfg.minibatch):
                dist, v = model(obs[idx])
                logp = dist.log_prob(act[idx]).sum(-1)
                ratio = (logp - logp_old[idx]).exp()
                surrogate = torch.min(ratio * adv[idx], ratio.clamp(1 - cfg.clip, 1 + cfg.clip) * adv[idx])
                loss = -surrogate.mean() + 0.5 * (v - ret[idx]).pow(2).mean() - 0.001 * dist.entropy().mean()  # <- here
                optim.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optim.step()
        print(f"iteration {it:2d} reward {score:.3f} loss {loss.item():.4f}")


main()
