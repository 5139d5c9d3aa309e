"""Deep Q-learning on a pole on a cart: memory, target network, epsilon-greedy (after the PyTorch tutorial)."""
import math
import random
from collections import deque, namedtuple

import torch
import torch.nn as nn
import torch.optim as optim

Transition = namedtuple("Transition", ("state", "action", "next_state", "reward", "done"))
BATCH_SIZE = 64
GAMMA = 0.98
EPS_START, EPS_END, EPS_DECAY = 0.9, 0.05, 1200
TAU = 0.02
LR = 1.5e-3
random.seed(2)
torch.manual_seed(2)


class Pole:
    """The classical cart and pole with Euler steps; an episode ends at 12 degrees, 2.4 m or 120 steps."""

    def reset(self):
        self.s = [random.uniform(-0.05, 0.05) for _ in range(4)]
        self.steps = 0
        return list(self.s)

    def step(self, action):
        x, v, angle, spin = self.s
        force = 10.0 if action == 1 else -10.0
        sin, cos = math.sin(angle), math.cos(angle)
        temp = (force + 0.05 * spin**2 * sin) / 1.1
        turn = (9.8 * sin - cos * temp) / (0.5 * (4.0 / 3.0 - 0.1 * cos**2 / 1.1))
        push = temp - 0.05 * turn * cos / 1.1
        self.s = [x + 0.02 * v, v + 0.02 * push, angle + 0.02 * spin, spin + 0.02 * turn]
        self.steps += 1
        fell = abs(self.s[0]) > 2.4 or abs(self.s[2]) > 0.2095
        return list(self.s), 1.0, fell, fell or self.steps >= 120


class ReplayMemory:
    def __init__(self, capacity):
        self.memory = deque([], maxlen=capacity)

    def push(self, *args):
        self.memory.append(Transition(*args))

    def sample(self, batch_size):
        return random.sample(self.memory, batch_size)

    def __len__(self):
        return len(self.memory)


class DQN(nn.Module):
    def __init__(self, n_observations=4, n_actions=2):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(n_observations, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, n_actions)
        )

    def forward(self, x):
        return self.layers(x)


policy_net, target_net = DQN(), DQN()
target_net.load_state_dict(policy_net.state_dict())
optimizer = optim.AdamW(policy_net.parameters(), lr=LR, amsgrad=True)
memory = ReplayMemory(5000)
steps_done = 0


def select_action(state):
    global steps_done
    threshold = EPS_END + (EPS_START - EPS_END) * math.exp(-steps_done / EPS_DECAY)
    steps_done += 1
    if random.random() > threshold:
        with torch.no_grad():
            return policy_net(torch.tensor(state)).argmax().item()
    return random.randrange(2)


def optimize_model():
    if len(memory) < 4 * BATCH_SIZE:
        return
    batch = Transition(*zip(*memory.sample(BATCH_SIZE)))
    state, next_state = torch.tensor(batch.state), torch.tensor(batch.next_state)
    action = torch.tensor(batch.action).unsqueeze(1)
    reward, done = torch.tensor(batch.reward), torch.tensor(batch.done, dtype=torch.float32)
    state_action_values = policy_net(state).gather(1, action)
    with torch.no_grad():
        next_state_values = target_net(next_state).max(1).values
    expected = reward + GAMMA * next_state_values * (1 - done)
    loss = nn.functional.smooth_l1_loss(state_action_values, expected.unsqueeze(1))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(policy_net.parameters(), 100)
    optimizer.step()


env = Pole()
durations = []
for i_episode in range(55):
    state = env.reset()
    while True:
        action = select_action(state)
        observation, reward, fell, over = env.step(action)
        memory.push(state, action, observation, reward, fell)
        state = observation
        optimize_model()
        with torch.no_grad():
            for slow, fast in zip(target_net.parameters(), policy_net.parameters()):
                slow.lerp_(fast, TAU)
        if over:
            durations.append(env.steps)
            break
    if i_episode % 5 == 4:
        print(f"episode {i_episode + 1} mean of five {sum(durations[-5:]) / 5:.1f}")
