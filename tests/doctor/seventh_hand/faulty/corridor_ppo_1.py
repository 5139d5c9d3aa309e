"""Proximal policy optimisation of a walker in a corridor with a pit (functions in the manner of notebooks)."""
import torch
import torch.nn as nn
from torch.distributions import Categorical

LENGTH, GOAL, PIT = 9, 8, 0
GAMMA, LAMBDA, CLIP, EPOCHS, MINIBATCH, LR = 0.97, 0.9, 0.2, 4, 64, 3e-3


class ActorCritic(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(LENGTH, width), nn.Tanh())
        self.pi, self.v = nn.Linear(width, 3), nn.Linear(width, 1)

    def forward(self, x):
        hidden = self.body(x)
        return Categorical(logits=self.pi(hidden)), self.v(hidden)


def one_hot(place):
    return torch.nn.functional.one_hot(place, LENGTH).float()


@torch.no_grad()
def rollout(model, steps=32, envs=16):
    place = torch.randint(1, LENGTH - 1, (envs,))
    kept = {name: [] for name in ("states", "actions", "logp", "rewards", "dones", "values")}
    for _ in range(steps):
        state = one_hot(place)
        policy, value = model(state)
        action = policy.sample()
        place = (place + action - 1).clamp(0, LENGTH - 1)
        reward = (place == GOAL).float() - (place == PIT).float() - 0.02
        done = (place == GOAL) | (place == PIT)
        for name, one in zip(kept, (state, action, policy.log_prob(action), reward, done.float(), value.squeeze(-1))):
            kept[name].append(one)
        place = torch.where(done, torch.randint(1, LENGTH - 1, (envs,)), place)
    last = model(one_hot(place))[1].squeeze(-1)
    return {name: torch.stack(rows) for name, rows in kept.items()}, last


def advantages(batch, last):
    out, running = torch.zeros_like(batch["rewards"]), torch.zeros_like(last)
    for t in reversed(range(len(out))):
        following = last if t + 1 == len(out) else batch["values"][t + 1]
        delta = batch["rewards"][t] + GAMMA * following * (1 - batch["dones"][t]) - batch["values"][t]
        running = delta + GAMMA * LAMBDA * (1 - batch["dones"][t]) * running
        out[t] = running
    return out


def update(model, optimizer, batch, last):
    advantage = advantages(batch, last)
    returns = (advantage + batch["values"]).flatten()
    states, actions, old = batch["states"].flatten(0, 1), batch["actions"].flatten(), batch["logp"].flatten()
    advantage = advantage.flatten()
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(states)).split(MINIBATCH):
            policy, value = model(states[rows])
            ratio = (policy.log_prob(actions[rows]) - old[rows]).exp()
            surrogate = torch.min(ratio * advantage[rows], ratio.clamp(1 - CLIP, 1 + CLIP) * advantage[rows])
            value_loss = (returns[rows] - value).pow(2).mean()  # <- here
            loss = -surrogate.mean() + 0.5 * value_loss - 0.01 * policy.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
    return value_loss.item()


torch.manual_seed(8)
model = ActorCritic()
optimizer = torch.optim.Adam(model.parameters(), lr=LR)
for iteration in range(10):
    batch, last = rollout(model)
    value_loss = update(model, optimizer, batch, last)
    print(f"{iteration}: reward a step {batch['rewards'].mean().item():.3f}, value loss {value_loss:.4f}")
