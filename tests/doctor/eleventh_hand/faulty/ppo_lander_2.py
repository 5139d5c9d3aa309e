# Proximal policy optimisation in one file, after CleanRL: a lander that has to brake in time
from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.distributions import Categorical


@dataclass
class Args:
    seed: int = 1
    num_envs: int = 8
    num_steps: int = 48
    updates: int = 40
    learning_rate: float = 3e-3
    gamma: float = 0.97
    gae_lambda: float = 0.95
    num_minibatches: int = 4
    update_epochs: int = 4
    clip_coef: float = 0.2
    ent_coef: float = 0.01
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5


class Landers:
    """Each falls from 1 with a speed; the engine has three levels; the reward tells how softly it lands."""

    def __init__(self, count, generator):
        self.count, self.g = count, generator
        self.height, self.speed, self.age = torch.zeros(count), torch.zeros(count), torch.zeros(count)

    def reset(self, which):
        n = int(which.sum())
        self.height[which] = 0.7 + 0.3 * torch.rand(n, generator=self.g)
        self.speed[which] = -0.1 * torch.rand(n, generator=self.g)
        self.age[which] = 0

    def observe(self):
        return torch.stack([self.height, self.speed * 5, self.age / 24], dim=1)

    def step(self, action):
        self.speed = self.speed - 0.02 + 0.018 * action
        self.height = self.height + self.speed
        self.age += 1
        landed, late = self.height <= 0, self.age >= 24
        reward = torch.where(landed, 1.0 - 8.0 * self.speed.abs(), torch.where(late, -1.0, 0.0)) - 0.01 * action
        over = landed | late
        self.reset(over)
        return self.observe(), reward, over.float()


def layer_init(layer, std=2**0.5):
    nn.init.orthogonal_(layer.weight, std)
    nn.init.zeros_(layer.bias)
    return layer


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(layer_init(nn.Linear(3, 48)), nn.Tanh(), layer_init(nn.Linear(48, 1), 1.0))
        self.actor = nn.Sequential(layer_init(nn.Linear(3, 48)), nn.Tanh(), layer_init(nn.Linear(48, 3), 0.01))

    def get_value(self, x):
        return self.critic(x).squeeze(-1)

    def get_action_and_value(self, x, action=None):
        probs = Categorical(logits=self.actor(x))
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.get_value(x)


args = Args()
torch.manual_seed(args.seed)
env = Landers(args.num_envs, torch.Generator().manual_seed(args.seed))
env.reset(torch.ones(args.num_envs, dtype=torch.bool))
agent = Agent()
optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
shape = (args.num_steps, args.num_envs)
obs = torch.zeros(*shape, 3)
actions, logprobs, rewards, dones, values = (torch.zeros(shape) for _ in range(5))
next_obs, next_done = env.observe(), torch.zeros(args.num_envs)
for update in range(1, args.updates + 1):
    for step in range(args.num_steps):
        obs[step], dones[step] = next_obs, next_done
        with torch.no_grad():
            action, logprobs[step], _, values[step] = agent.get_action_and_value(next_obs)
        actions[step] = action
        next_obs, rewards[step], next_done = env.step(action)
    with torch.no_grad():
        next_value, lastgaelam = agent.get_value(next_obs), 0
        advantages = torch.zeros(shape)
        for t in reversed(range(args.num_steps)):
            alive = 1.0 - (next_done if t == args.num_steps - 1 else dones[t + 1])
            after = next_value if t == args.num_steps - 1 else values[t + 1]
            delta = rewards[t] + args.gamma * after * alive - values[t]
            advantages[t] = lastgaelam = delta + args.gamma * args.gae_lambda * alive * lastgaelam
        returns = advantages + values
    b_obs, b_actions = obs.reshape(-1, 3), actions.reshape(-1)
    b_logprobs, b_advantages, b_returns = logprobs.reshape(-1), advantages.reshape(-1), returns.reshape(-1)
    for epoch in range(args.update_epochs):
        for mb in torch.randperm(len(b_obs)).chunk(args.num_minibatches):
            _, newlogprob, entropy, newvalue = agent.get_action_and_value(b_obs[mb], b_actions[mb])
            ratio = (newlogprob - b_logprobs[mb]).exp()
            mb_advantages = (b_advantages[mb] - b_advantages[mb].mean()) / (b_advantages[mb].std() + 1e-8)
            pg_loss1 = -mb_advantages * ratio
            pg_loss2 = -mb_advantages * torch.clamp(ratio, 1 - args.clip_coef, 1 + args.clip_coef)
            pg_loss = torch.max(pg_loss1, pg_loss2).mean()
            v_loss = 0.5 * ((newvalue - b_returns[mb]) ** 2).mean()
            loss = pg_loss - args.ent_coef * entropy.mean() + v_loss * args.vf_coef
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
    if update % 8 == 0:
        ends = dones.sum().clamp(min=1)
        print(f"update {update} reward an episode {rewards.sum() / ends:.3f} value loss {v_loss.item():.4f} entropy {entropy.mean().item():.3f}")
