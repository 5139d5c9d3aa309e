"""DQN on a small frozen lake with one-hot states."""
import random
from collections import deque

import torch
import torch.nn as nn
import torch.nn.functional as F

SIDE = 4
HOLES, GOAL = {5, 7, 11, 12}, 15


class Lake:
    def reset(self):
        self.at, self.steps = 0, 0
        return self.at

    def step(self, action):
        row, col = divmod(self.at, SIDE)
        row += (action == 1) - (action == 3)
        col += (action == 2) - (action == 0)
        self.at = min(max(row, 0), SIDE - 1) * SIDE + min(max(col, 0), SIDE - 1)
        self.steps += 1
        done = self.at in HOLES or self.at == GOAL
        return self.at, (1.0 if self.at == GOAL else -1.0 if self.at in HOLES else -0.01), done, self.steps >= 40


class QNetwork(nn.Module):
    def __init__(self, hidden=48):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(SIDE * SIDE, hidden), nn.Linear(hidden, 4)

    def forward(self, state):
        return self.fc2(F.relu(self.fc1(F.one_hot(state, SIDE * SIDE).float())))


class DQNAgent:
    def __init__(self, lr=2e-3, gamma=0.95, batch_size=32, target_every=50):
        self.policy_net, self.target_net = QNetwork(), QNetwork()
        self.target_net.load_state_dict(self.policy_net.state_dict())
        self.target_net.eval()
        self.optimizer = torch.optim.Adam(self.policy_net.parameters(), lr=lr)
        self.memory = deque(maxlen=2000)
        self.gamma, self.batch_size, self.target_every, self.updates = gamma, batch_size, target_every, 0

    def act(self, state, epsilon):
        if random.random() < epsilon:
            return random.randrange(4)
        with torch.no_grad():
            return int(self.policy_net(torch.tensor([state])).argmax(1))

    def learn(self):
        if len(self.memory) < 200:
            return
        batch = random.sample(self.memory, self.batch_size)
        states, actions, rewards, next_states, dones = (torch.tensor(each) for each in zip(*batch))
        q_values = self.policy_net(states).gather(1, actions.unsqueeze(1)).squeeze(1)
        with torch.no_grad():
            next_q = self.target_net(next_states).max(1).values
            targets = rewards + self.gamma * next_q * (1 - dones.float())
        loss = F.smooth_l1_loss(q_values, targets)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.updates += 1
        if self.updates % self.target_every == 0:
            self.target_net.load_state_dict(self.policy_net.state_dict())


def main(episodes=220):
    random.seed(3)
    torch.manual_seed(3)
    env, agent, won = Lake(), DQNAgent(), []
    for episode in range(episodes):
        state, epsilon = env.reset(), max(0.05, 1 - episode / 120)
        while True:
            action = agent.act(state, epsilon)
            next_state, reward, done, cut = env.step(action)
            agent.memory.append((state, action, reward, next_state, done))
            agent.learn()
            state = next_state
            if done or cut:
                break
        won.append(float(state == GOAL))
        if (episode + 1) % 55 == 0:
            print(f"episode {episode + 1}: reached the goal in {sum(won[-40:]) / 40:.2f} of the last 40, epsilon {epsilon:.2f}")
    with torch.no_grad():
        print("value of the start:", agent.policy_net(torch.tensor([0])).max().item())


main()
