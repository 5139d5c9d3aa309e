"""Advantage actor-critic on a pole that is to be balanced, without any gym."""
import math

import torch
import torch.nn as nn
from torch.distributions import Categorical


class Pole:
    """Angle and velocity of a pole; a push to the left or to the right."""

    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)

    def reset(self):
        self.state = (torch.rand(2, generator=self.generator) - 0.5) * 0.1
        self.age = 0
        return self.state.clone()

    def step(self, action):
        angle, speed = self.state.tolist()
        push = 1.0 if action == 1 else -1.0
        speed += 0.05 * (9.8 * math.sin(angle) - 6.0 * push * math.cos(angle))
        angle += 0.05 * speed
        self.state = torch.tensor([angle, speed])
        self.age += 1
        done = abs(angle) > 0.5 or self.age >= 60
        return self.state.clone(), 1.0, done


class ActorCritic(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, hidden), nn.Tanh())
        self.policy = nn.Linear(hidden, 2)
        self.value = nn.Linear(hidden, 1)

    def forward(self, state):
        features = self.body(state)
        return Categorical(logits=self.policy(features)), self.value(features)


def play(env, agent):
    states, actions, rewards = [], [], []
    state, done = env.reset(), False
    while not done:
        with torch.no_grad():
            policy, _ = agent(state)
        action = policy.sample()
        states.append(state)
        actions.append(action)
        state, reward, done = env.step(action.item())
        rewards.append(reward)
    return torch.stack(states), torch.stack(actions), rewards


def discounted(rewards, gamma=0.97):
    returns, running = [], 0.0
    for reward in reversed(rewards):
        running = reward + gamma * running
        returns.append(running)
    return torch.tensor(returns[::-1])


def update(agent, optimizer, episode):
    states, actions, rewards = episode
    returns = discounted(rewards) / 20.0
    policy, values = agent(states)
    advantage = returns - values.detach().view(-1)
    actor_loss = -(policy.log_prob(actions) * advantage).mean()
    critic_loss = (returns - values).pow(2).mean()  # <- here
    loss = actor_loss + 0.5 * critic_loss - 0.01 * policy.entropy().mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
    optimizer.step()
    return critic_loss.item()


def main():
    torch.manual_seed(3)
    env, agent = Pole(seed=3), ActorCritic()
    optimizer = torch.optim.Adam(agent.parameters(), lr=3e-3)
    lengths = []
    for number in range(120):
        episode = play(env, agent)
        critic_loss = update(agent, optimizer, episode)
        lengths.append(len(episode[2]))
        if number % 20 == 19:
            print(f"episode {number + 1}: length {sum(lengths[-20:]) / 20:.1f}, critic {critic_loss:.4f}")


if __name__ == "__main__":
    main()
