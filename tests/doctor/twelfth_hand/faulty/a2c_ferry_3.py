# Advantage actor-critic. A ferry has to be kept in the channel against a random current.
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Categorical

SEED = 2
GAMMA = 0.97
N_ENVS, N_STEPS, UPDATES = 16, 10, 160
ENT_COEF, VF_COEF = 0.01, 0.5


class FerryEnv:
    """state: offset, speed, current. Actions: port, nothing, starboard. Aground at |offset| > 1."""

    def __init__(self, rng):
        self.rng = rng

    def reset(self):
        self.x, self.v = self.rng.uniform(-0.3, 0.3), 0.0
        self.current = self.rng.uniform(-0.035, 0.035)
        return self._obs()

    def _obs(self):
        return np.array([self.x, self.v * 5, self.current * 20], dtype=np.float32)

    def step(self, action):
        self.v = 0.9 * self.v + 0.05 * (action - 1) + self.current + self.rng.normal(0, 0.01)
        self.x += self.v
        aground = abs(self.x) > 1
        reward = -2.0 if aground else 0.2 * (1 - abs(self.x))
        return self._obs(), reward, aground


class ActorCritic(nn.Module):
    def __init__(self, obs_dim=3, n_actions=3, hidden=48):
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(obs_dim, hidden), nn.Tanh(), nn.Linear(hidden, n_actions))
        self.critic = nn.Sequential(nn.Linear(obs_dim, hidden), nn.Tanh(), nn.Linear(hidden, 1))

    def forward(self, obs):
        return Categorical(logits=self.actor(obs)), self.critic(obs).squeeze(-1)


def main():
    torch.manual_seed(SEED)
    envs = [FerryEnv(np.random.default_rng(SEED + i)) for i in range(N_ENVS)]
    obs = np.stack([e.reset() for e in envs])
    model = ActorCritic()
    optim = torch.optim.RMSprop(model.parameters(), lr=3e-3)
    aground, earned = 0, []

    for update in range(1, UPDATES + 1):
        log_probs, values, rewards, dones, entropies = [], [], [], [], []
        for _ in range(N_STEPS):
            dist, value = model(torch.from_numpy(obs))
            action = dist.sample()
            log_probs.append(dist.log_prob(action))
            entropies.append(dist.entropy())
            values.append(value)
            next_obs, r, d = [], [], []
            for env, a in zip(envs, action.tolist()):
                o, rew, done = env.step(a)
                aground += done
                if done:
                    o = env.reset()
                next_obs.append(o)
                r.append(rew)
                d.append(float(done))
            obs = np.stack(next_obs)
            earned.append(np.mean(r))
            rewards.append(torch.tensor(r, dtype=torch.float32))
            dones.append(torch.tensor(d))

        with torch.no_grad():
            _, ret = model(torch.from_numpy(obs))
        returns = []
        for t in reversed(range(N_STEPS)):
            ret = rewards[t] + GAMMA * ret * (1 - dones[t])
            returns.insert(0, ret)

        returns, values = torch.stack(returns), torch.stack(values)
        log_probs, entropies = torch.stack(log_probs), torch.stack(entropies)
        advantage = returns - values
        policy_loss = -(log_probs * advantage.detach()).mean()
        value_loss = F.mse_loss(values, returns)
        loss = policy_loss + VF_COEF * value_loss + ENT_COEF * entropies.mean()

        optim.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optim.step()

        if update % 20 == 0:
            print(f"update {update} value loss {value_loss.item():.3f} entropy {entropies.mean().item():.3f} "
                  f"reward {np.mean(earned):.3f} aground {aground}")
            aground, earned = 0, []


if __name__ == "__main__":
    main()
