"""Soft actor-critic on a small pendulum, with a learned temperature (single file, in CleanRL's manner)."""
import copy
import math
from collections import deque
from random import Random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Normal

torch.manual_seed(1)
chooser = Random(1)
GAMMA, TAU, BATCH = 0.98, 0.02, 64
TARGET_ENTROPY = -1.0


class Pendulum:
    def reset(self):
        self.theta, self.speed, self.t = chooser.uniform(-math.pi, math.pi), chooser.uniform(-1, 1), 0
        return self.obs()

    def obs(self):
        return torch.tensor([math.cos(self.theta), math.sin(self.theta), self.speed / 8])

    def step(self, torque):
        angle = (self.theta + math.pi) % (2 * math.pi) - math.pi
        cost = angle**2 + 0.1 * self.speed**2 + 0.001 * torque**2
        self.speed = max(-8.0, min(8.0, self.speed + 0.05 * (15 * math.sin(self.theta) + 3 * torque)))
        self.theta += 0.05 * self.speed
        self.t += 1
        return self.obs(), -cost / 10, self.t >= 60


class SoftQNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, obs, action):
        return self.net(torch.cat([obs, action], 1))


class Actor(nn.Module):
    def __init__(self, scale=2.0):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.mean, self.log_std = nn.Linear(64, 1), nn.Linear(64, 1)
        self.scale = scale

    def get_action(self, obs):
        h = self.trunk(obs)
        mean, log_std = self.mean(h), torch.tanh(self.log_std(h)) * 2 - 1
        normal = Normal(mean, log_std.exp())
        x = normal.rsample()
        y = torch.tanh(x)
        log_prob = normal.log_prob(x) - torch.log(self.scale * (1 - y.pow(2)) + 1e-6)
        return y * self.scale, log_prob.sum(1, keepdim=True), torch.tanh(mean) * self.scale


env, actor = Pendulum(), Actor()
qf1, qf2 = SoftQNetwork(), SoftQNetwork()
qf1_target, qf2_target = copy.deepcopy(qf1), copy.deepcopy(qf2)
q_optimizer = torch.optim.Adam(list(qf1.parameters()) + list(qf2.parameters()), lr=1e-3)
actor_optimizer = torch.optim.Adam(actor.parameters(), lr=5e-4)
log_alpha = torch.zeros(1, requires_grad=True)
a_optimizer = torch.optim.Adam([log_alpha], lr=1e-2)
buffer = deque(maxlen=5000)


def draw():
    rows = chooser.sample(list(buffer), BATCH)
    obs, actions, rewards, next_obs, dones = zip(*rows)
    return (
        torch.stack(obs),
        torch.tensor(actions).unsqueeze(1),
        torch.tensor(rewards).unsqueeze(1),
        torch.stack(next_obs),
        torch.tensor(dones).unsqueeze(1),
    )


obs = env.reset()
episode_return = 0.0
for global_step in range(420):
    if global_step < 150:
        action = chooser.uniform(-2, 2)
    else:
        with torch.no_grad():
            action = actor.get_action(obs.unsqueeze(0))[0].item()
    next_obs, reward, over = env.step(action)
    buffer.append((obs, action, reward, next_obs, 0.0))  # the end is a limit of time, no terminal state
    episode_return += reward
    obs = next_obs
    if over:
        print(f"step {global_step} return {episode_return:.2f} alpha {log_alpha.exp().item():.3f}")
        obs, episode_return = env.reset(), 0.0
    if global_step < 200:
        continue

    b_obs, b_actions, b_rewards, b_next, b_dones = draw()
    alpha = log_alpha.exp().item()
    with torch.no_grad():
        next_actions, next_log_pi, _ = actor.get_action(b_next)
        min_q = torch.min(qf1_target(b_next, next_actions), qf2_target(b_next, next_actions))
        next_q_value = b_rewards + (1 - b_dones) * GAMMA * (min_q - alpha * next_log_pi)
    qf_loss = F.mse_loss(qf1(b_obs, b_actions), next_q_value) + F.mse_loss(qf2(b_obs, b_actions), next_q_value)
    q_optimizer.zero_grad()
    qf_loss.backward()
    q_optimizer.step()

    pi, log_pi, _ = actor.get_action(b_obs)
    actor_loss = (alpha * log_pi - torch.min(qf1(b_obs, pi), qf2(b_obs, pi))).mean()
    actor_optimizer.zero_grad()
    actor_loss.backward()
    actor_optimizer.step()

    alpha_loss = -(log_alpha.exp() * (log_pi.detach() + TARGET_ENTROPY)).mean()
    a_optimizer.zero_grad()
    alpha_loss.backward()

    with torch.no_grad():
        for net, target in ((qf1, qf1_target), (qf2, qf2_target)):
            for p, tp in zip(net.parameters(), target.parameters()):
                tp.lerp_(p, TAU)
print(f"qf {qf_loss.item():.4f} actor {actor_loss.item():.4f} alpha {log_alpha.exp().item():.4f}")
