from dataclasses import dataclass

import torch
from torch import nn
from torch.distributions import Categorical


@dataclass
class Args:
    length: int = 8
    envs: int = 16
    rollout: int = 12
    updates: int = 120
    gamma: float = 0.97
    lr: float = 5e-3
    vf_coef: float = 0.5
    ent_coef: float = 0.01
    seed: int = 11


class ActorCritic(nn.Module):
    def __init__(self, length, actions=3):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(length, 48), nn.Tanh())
        self.actor, self.critic = nn.Linear(48, actions), nn.Linear(48, 1)

    def forward(self, obs):
        hidden = self.body(obs)
        probs = torch.softmax(self.actor(hidden), dim=-1)  # <- here
        return Categorical(logits=probs), self.critic(hidden).squeeze(-1)  # <- here


class Tunnels:
    """Walkers in a tunnel; the light is at one end, and a wrong door costs."""

    def __init__(self, args):
        self.length, self.envs = args.length, args.envs
        self.at = torch.zeros(self.envs, dtype=torch.long)

    def observe(self):
        return nn.functional.one_hot(self.at, self.length).float()

    def step(self, action):
        self.at = (self.at + (action == 1).long() - (action == 0).long()).clamp(0, self.length - 1)
        done = self.at == self.length - 1
        reward = done.float() - 0.05 - 0.1 * (action == 2).float()
        self.at = torch.where(done, torch.zeros_like(self.at), self.at)
        return reward, done


def collect(env, model, args):
    rows = []
    for _ in range(args.rollout):
        obs = env.observe()
        with torch.no_grad():
            action = model(obs)[0].sample()
        reward, done = env.step(action)
        rows.append((obs, action, reward, done))
    obs, action, reward, done = (torch.stack(each) for each in zip(*rows))
    with torch.no_grad():
        running = model(env.observe())[1]
    returns = torch.empty_like(reward)
    for step in reversed(range(args.rollout)):
        running = reward[step] + args.gamma * running * (~done[step]).float()
        returns[step] = running
    return obs.flatten(0, 1), action.flatten(), returns.flatten(), reward.mean().item()


def update(model, optimizer, obs, action, returns, args):
    dist, values = model(obs)  # <- here
    advantages = (returns - values).detach()
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    policy_loss = -(dist.log_prob(action) * advantages).mean()  # <- here
    value_loss = nn.functional.mse_loss(values, returns)
    loss = policy_loss + args.vf_coef * value_loss - args.ent_coef * dist.entropy().mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    return value_loss.item(), dist.entropy().mean().item()


if __name__ == "__main__":
    args = Args()
    torch.manual_seed(args.seed)
    env, model = Tunnels(args), ActorCritic(args.length)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for number in range(args.updates):
        obs, action, returns, reward = collect(env, model, args)
        value_loss, entropy = update(model, optimizer, obs, action, returns, args)
        if (number + 1) % 30 == 0:
            print(f"update {number + 1}: reward {reward:.4f}, value loss {value_loss:.4f}, entropy {entropy:.3f}")
