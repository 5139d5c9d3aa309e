# coding: utf-8
# Hindsight experience replay on the bit flipping environment
import random
from collections import deque

import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim

random.seed(0)
np.random.seed(0)
torch.manual_seed(0)


class Env(object):
    def __init__(self, num_bits):
        self.num_bits = num_bits

    def reset(self):
        self.done = False
        self.num_steps = 0
        self.state = np.random.randint(2, size=self.num_bits)
        self.target = np.random.randint(2, size=self.num_bits)
        while (self.state == self.target).all():
            self.target = np.random.randint(2, size=self.num_bits)
        return self.state, self.target

    def step(self, action):
        self.state = self.state.copy()
        self.state[action] = 1 - self.state[action]
        self.num_steps += 1
        reached = bool((self.state == self.target).all())
        self.done = reached or self.num_steps > self.num_bits
        return self.state, 0.0 if reached else -1.0, self.done, reached


class ReplayBuffer(object):
    def __init__(self, capacity):
        self.buffer = deque(maxlen=capacity)

    def push(self, state, action, reward, next_state, reached, goal):
        self.buffer.append((state, action, reward, next_state, reached, goal))

    def sample(self, batch_size):
        return map(np.stack, zip(*random.sample(self.buffer, batch_size)))

    def __len__(self):
        return len(self.buffer)


class Model(nn.Module):
    def __init__(self, num_inputs, num_outputs, hidden_size=128):
        super(Model, self).__init__()
        self.linear1 = nn.Linear(num_inputs, hidden_size)
        self.linear2 = nn.Linear(hidden_size, num_outputs)

    def forward(self, state, goal):
        x = torch.relu(self.linear1(torch.cat([state, goal], 1)))
        return self.linear2(x)


def update_target(current_model, target_model):
    target_model.load_state_dict(current_model.state_dict())


def get_action(model, state, goal, epsilon=0.2):
    if random.random() < epsilon:
        return random.randrange(num_bits)
    with torch.no_grad():
        q_value = model(torch.FloatTensor(state).unsqueeze(0), torch.FloatTensor(goal).unsqueeze(0))
    return q_value.max(1)[1].item()


def compute_td_error(batch_size, gamma=0.98):
    state, action, reward, next_state, reached, goal = replay_buffer.sample(batch_size)
    state, next_state, goal = map(torch.FloatTensor, (state, next_state, goal))
    action = torch.LongTensor(action).unsqueeze(1)
    reward = torch.FloatTensor(reward).unsqueeze(1)
    mask = torch.FloatTensor(1 - reached.astype(float)).unsqueeze(1)

    q_value = model(state, goal).gather(1, action)
    with torch.no_grad():
        next_q_value = target_model(next_state, goal).max(1)[0].unsqueeze(1)
    expected_q_value = reward + gamma * next_q_value * mask

    loss = (q_value - expected_q_value).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def success_rate(episodes=100):
    hits = 0
    for _ in range(episodes):
        state, goal = env.reset()
        done = reached = False
        while not done:
            state, _, done, reached = env.step(get_action(model, state, goal, epsilon=0.0))
        hits += reached
    return hits / episodes


num_bits = 8
env = Env(num_bits)
model = Model(2 * num_bits, num_bits)
target_model = Model(2 * num_bits, num_bits)
update_target(model, target_model)

batch_size = 64
new_goals = 4
max_frames = 5000
optimizer = optim.Adam(model.parameters(), lr=1e-3)
replay_buffer = ReplayBuffer(10000)

frame_idx = 0
episodes = 0
losses = []
while frame_idx < max_frames:
    state, goal = env.reset()
    episode = []
    done = False
    while not done:
        action = get_action(model, state, goal)
        next_state, reward, done, reached = env.step(action)
        episode.append((state, action, reward, next_state, reached, goal))
        state = next_state
        frame_idx += 1
        if len(replay_buffer) > 500 and frame_idx % 2 == 0:
            losses.append(compute_td_error(batch_size))

    for t, (state, action, reward, next_state, reached, goal) in enumerate(episode):
        replay_buffer.push(state, action, reward, next_state, reached, goal)
        for _ in range(new_goals):
            new_goal = episode[random.randrange(t, len(episode))][3]
            hit = bool((new_goal == next_state).all())
            replay_buffer.push(state, action, 0.0 if hit else -1.0, next_state, hit, new_goal)

    episodes += 1
    if episodes % 150 == 0:
        print("frame %d: td error %.4f, success rate %.2f" % (frame_idx, np.mean(losses[-100:]), success_rate()))
print("success rate %.2f" % success_rate(200))
