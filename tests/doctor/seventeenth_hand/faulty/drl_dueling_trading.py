#!/usr/bin/env python3
"""Dueling double DQN on a small stock environment (buy, hold, close)."""
import collections
import random

import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim

BARS, EPISODE, GAMMA, BATCH_SIZE = 6, 30, 0.95, 32
REPLAY_SIZE, REPLAY_INITIAL, TARGET_SYNC, STEPS = 4000, 400, 100, 3000
Experience = collections.namedtuple("Experience", "state action reward done next_state")


class StocksEnv:
    """Prices with a slow hidden trend; actions: 0 skip, 1 buy, 2 close (which ends the episode)."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def reset(self):
        n = EPISODE + BARS + 1
        trend = np.repeat(self.rng.choice([-1.0, 1.0], n // 8 + 1), 8)[:n]
        self.returns = 0.6 * trend + 0.5 * self.rng.normal(size=n)
        self.t, self.have = BARS, 0.0
        return self._state()

    def _state(self):
        return np.append(self.returns[self.t - BARS:self.t], self.have).astype(np.float32)

    def step(self, action):
        reward, done = 0.0, False
        if action == 1 and not self.have:
            self.have, reward = 1.0, -0.1
        elif action == 2 and self.have:
            self.have, reward, done = 0.0, -0.1, True
        reward += self.have * self.returns[self.t]
        self.t += 1
        return self._state(), float(reward), done, self.t >= BARS + EPISODE


class SimpleFFDQN(nn.Module):
    def __init__(self, obs_len, actions_n):
        super().__init__()
        self.fc_val = nn.Sequential(nn.Linear(obs_len, 64), nn.ReLU(), nn.Linear(64, 1))
        self.fc_adv = nn.Sequential(nn.Linear(obs_len, 64), nn.ReLU(), nn.Linear(64, actions_n))

    def forward(self, x):
        val = self.fc_val(x)
        adv = self.fc_adv(x)
        return val + adv - adv.mean()


def unpack_batch(batch):
    states, actions, rewards, dones, next_states = zip(*batch)
    return (torch.from_numpy(np.array(states)), torch.tensor(actions), torch.tensor(rewards),
            torch.tensor(dones), torch.from_numpy(np.array(next_states)))


def calc_loss(batch, net, tgt_net):
    states, actions, rewards, dones, next_states = unpack_batch(batch)
    state_action_vals = net(states).gather(1, actions.unsqueeze(-1)).squeeze(-1)
    with torch.no_grad():
        next_actions = net(next_states).argmax(dim=1, keepdim=True)
        next_vals = tgt_net(next_states).gather(1, next_actions).squeeze(-1)
        next_vals[dones] = 0.0
    return nn.functional.mse_loss(state_action_vals, rewards + GAMMA * next_vals)


@torch.no_grad()
def validation_run(env, net, episodes=40):
    rewards, values = [], []
    for _ in range(episodes):
        state, total, done, truncated = env.reset(), 0.0, False, False
        while not (done or truncated):
            q = net(torch.from_numpy(state).unsqueeze(0))
            values.append(q.max().item())
            state, reward, done, truncated = env.step(q.argmax(dim=1).item())
            total += reward
        rewards.append(total)
    return np.mean(rewards), np.mean(values)


if __name__ == "__main__":
    random.seed(42)
    np.random.seed(42)
    torch.manual_seed(42)
    env = StocksEnv(seed=1)
    net, tgt_net = SimpleFFDQN(BARS + 1, 3), SimpleFFDQN(BARS + 1, 3)
    tgt_net.load_state_dict(net.state_dict())
    optimizer = optim.Adam(net.parameters(), lr=1e-3)
    buffer = collections.deque(maxlen=REPLAY_SIZE)
    state, losses = env.reset(), []
    for step_idx in range(1, STEPS + 1):
        epsilon = max(0.05, 1.0 - step_idx / 1500)
        if random.random() < epsilon:
            action = random.randrange(3)
        else:
            with torch.no_grad():
                action = net(torch.from_numpy(state).unsqueeze(0)).argmax(dim=1).item()
        next_state, reward, done, truncated = env.step(action)
        buffer.append(Experience(state, action, reward, done, next_state))
        state = env.reset() if done or truncated else next_state
        if len(buffer) < REPLAY_INITIAL:
            continue

        optimizer.zero_grad()
        loss = calc_loss(random.sample(buffer, BATCH_SIZE), net, tgt_net)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step_idx % TARGET_SYNC == 0:
            tgt_net.load_state_dict(net.state_dict())
        if step_idx % 1000 == 0:
            mean_reward, mean_value = validation_run(StocksEnv(seed=2), net)
            print(f"{step_idx}: loss {np.mean(losses[-200:]):.4f}, val reward {mean_reward:.3f}, "
                  f"values mean {mean_value:.3f}")
