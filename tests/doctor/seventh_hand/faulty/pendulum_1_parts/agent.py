"""Actor, critic, their targets, and the memory."""
import copy

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class Actor(nn.Module):
    def __init__(self, state_dim, action_dim, max_action):
        super().__init__()
        self.l1, self.l2, self.l3 = nn.Linear(state_dim, 64), nn.Linear(64, 64), nn.Linear(64, action_dim)
        self.max_action = max_action

    def forward(self, state):
        return self.max_action * torch.tanh(self.l3(F.relu(self.l2(F.relu(self.l1(state))))))


class Critic(nn.Module):
    def __init__(self, state_dim, action_dim):
        super().__init__()
        self.l1, self.l2, self.l3 = nn.Linear(state_dim + action_dim, 64), nn.Linear(64, 64), nn.Linear(64, 1)

    def forward(self, state, action):
        return self.l3(F.relu(self.l2(F.relu(self.l1(torch.cat([state, action], 1))))))


class ReplayBuffer:
    def __init__(self, size, seed):
        self.size, self.rows, self.rng = size, [], np.random.default_rng(seed)

    def __len__(self):
        return len(self.rows)

    def push(self, *row):
        self.rows = [*self.rows, row][-self.size :]

    def sample(self, count):
        rows = [self.rows[place] for place in self.rng.integers(0, len(self.rows), count)]
        state, action, reward, following, done = (torch.tensor(np.array(part), dtype=torch.float32) for part in zip(*rows))
        return state, action.unsqueeze(1), reward.unsqueeze(1), following, done.unsqueeze(1)


class DDPG:
    def __init__(self, state_dim, action_dim, max_action, discount=0.97, tau=0.01):
        self.actor = Actor(state_dim, action_dim, max_action)
        self.actor_target = copy.deepcopy(self.actor)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=1e-3)
        self.critic = Critic(state_dim, action_dim)
        self.critic_target = copy.deepcopy(self.critic)
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), lr=1e-3)  # <- here
        self.discount, self.tau, self.shown = discount, tau, {}

    @torch.no_grad()
    def select_action(self, state):
        return self.actor(torch.from_numpy(state).unsqueeze(0)).item()

    def train(self, batch):
        state, action, reward, next_state, done = batch

        target_Q = self.critic_target(next_state, self.actor_target(next_state))
        target_Q = reward + ((1 - done) * self.discount * target_Q).detach()
        current_Q = self.critic(state, action)
        critic_loss = F.mse_loss(current_Q, target_Q)
        self.critic_optimizer.zero_grad()
        critic_loss.backward()  # <- here
        self.actor_optimizer.step()  # <- here

        actor_loss = -self.critic(state, self.actor(state)).mean()
        self.actor_optimizer.zero_grad()
        actor_loss.backward()
        self.actor_optimizer.step()

        with torch.no_grad():
            for net, target in ((self.critic, self.critic_target), (self.actor, self.actor_target)):
                for new, kept in zip(net.parameters(), target.parameters()):
                    kept.mul_(1 - self.tau).add_(self.tau * new)
        self.shown = {"critic": critic_loss.item(), "actor": actor_loss.item()}
