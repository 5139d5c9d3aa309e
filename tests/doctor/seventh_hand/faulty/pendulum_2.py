"""DDPG on a pendulum that is written out here."""
import numpy as np
import torch

from pendulum_2_parts.agent import DDPG, ReplayBuffer


class Pendulum:
    """Swing up: the state is (cos, sin, speed), the action a torque in -2 to 2."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def reset(self):
        self.angle, self.speed, self.time = self.rng.uniform(-np.pi, np.pi), self.rng.uniform(-1, 1), 0
        return self.state()

    def state(self):
        return np.array([np.cos(self.angle), np.sin(self.angle), self.speed / 8], dtype=np.float32)

    def step(self, torque):
        cost = ((self.angle + np.pi) % (2 * np.pi) - np.pi) ** 2 + 0.1 * self.speed**2 + 0.001 * torque**2
        self.speed = np.clip(self.speed + (15 * np.sin(self.angle) + 3 * torque) * 0.05, -8, 8)
        self.angle += self.speed * 0.05
        self.time += 1
        return self.state(), -cost / 10, self.time >= 100


def main(episodes=6, batch_size=64):
    torch.manual_seed(0)
    env, agent, buffer = Pendulum(0), DDPG(state_dim=3, action_dim=1, max_action=2.0), ReplayBuffer(2000, seed=1)
    noise = np.random.default_rng(2)
    for episode in range(episodes):
        state, done, score = env.reset(), False, 0.0
        while not done:
            action = float(np.clip(agent.select_action(state) + noise.normal(0, 0.3), -2, 2))
            following, reward, done = env.step(action)
            buffer.push(state, action, reward, following, 0.0)
            state, score = following, score + reward
            if len(buffer) >= batch_size:
                agent.train(buffer.sample(batch_size))
        print(f"episode {episode}: return {score:.2f}, critic loss {agent.shown.get('critic', float('nan')):.4f}")


if __name__ == "__main__":
    main()
