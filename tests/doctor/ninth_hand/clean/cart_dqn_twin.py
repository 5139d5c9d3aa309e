import copy
import math
import random
from collections import deque, namedtuple

import torch
import torch.nn as nn

Transition = namedtuple("Transition", "state action reward next_state done")
random.seed(0)
torch.manual_seed(0)


class CartPole:
    """The classic one, without gym."""

    def reset(self):
        self.s = [random.uniform(-0.05, 0.05) for _ in range(4)]
        self.t = 0
        return self.s

    def step(self, action):
        x, v, theta, w = self.s
        force = 10.0 if action == 1 else -10.0
        cos, sin = math.cos(theta), math.sin(theta)
        temp = (force + 0.05 * w * w * sin) / 1.1
        acc = (9.8 * sin - cos * temp) / (0.5 * (4 / 3 - 0.1 * cos * cos / 1.1))
        x_acc = temp - 0.05 * acc * cos / 1.1
        self.s = [x + 0.02 * v, v + 0.02 * x_acc, theta + 0.02 * w, w + 0.02 * acc]
        self.t += 1
        fell = abs(self.s[0]) > 2.4 or abs(self.s[2]) > 0.21
        return self.s, 1.0, fell, self.t >= 200


class Agent:
    def __init__(self, gamma=0.98, lr=1e-3, batch_size=64, sync_every=100):
        self.policy_net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
        self.target_net = copy.deepcopy(self.policy_net)
        self.optimizer = torch.optim.Adam(self.policy_net.parameters(), lr=lr)
        self.memory = deque(maxlen=5000)
        self.gamma, self.batch_size, self.sync_every = gamma, batch_size, sync_every
        self.updates = 0

    def act(self, state, eps):
        if random.random() < eps:
            return random.randrange(2)
        with torch.no_grad():
            return int(self.policy_net(torch.tensor(state)).argmax())

    def learn(self):
        if len(self.memory) < 200:
            return
        batch = Transition(*zip(*random.sample(self.memory, self.batch_size)))
        state, next_state = torch.tensor(batch.state), torch.tensor(batch.next_state)
        action = torch.tensor(batch.action).unsqueeze(1)
        reward, done = torch.tensor(batch.reward), torch.tensor(batch.done, dtype=torch.float32)
        q = self.policy_net(state).gather(1, action).squeeze(1)
        with torch.no_grad():
            best = self.policy_net(next_state).argmax(1, keepdim=True)
            q_next = self.target_net(next_state).gather(1, best).squeeze(1)
            target = reward + self.gamma * (1 - done) * q_next
        loss = nn.functional.smooth_l1_loss(q, target)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(self.policy_net.parameters(), 10)
        self.optimizer.step()
        self.updates += 1
        with torch.no_grad():
            for slow, fast in zip(self.target_net.parameters(), self.policy_net.parameters()):
                slow.lerp_(fast, 0.05)


env, agent = CartPole(), Agent()
lengths, steps = [], 0
while steps < 2500:
    state, over = env.reset(), False
    while not over:
        action = agent.act(state, max(0.05, 1 - steps / 1200))
        next_state, reward, fell, cut = env.step(action)
        agent.memory.append(Transition(state, action, reward, next_state, fell))
        state, over = next_state, fell or cut
        agent.learn()
        steps += 1
    lengths.append(env.t)
print(f"{len(lengths)} episodes, the last ten {sum(lengths[-10:]) / 10:.1f} steps long, {agent.updates} updates")
