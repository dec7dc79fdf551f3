"""Deep Q-learning with a replay buffer on the host, a target network and an epsilon-greedy policy."""

import math
import random
from collections import deque, namedtuple
from itertools import count

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim

device = torch.device("cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu")
Transition = namedtuple("Transition", ("state", "action", "next_state", "reward"))
BATCH_SIZE, GAMMA, EPS_START, EPS_END, EPS_DECAY, TAU = 32, 0.99, 0.9, 0.05, 30, 0.005


class CorridorEnv:
    """Walk left or right on a line; the end of it is worth a reward."""

    n_observations, n_actions = 4, 2

    def reset(self):
        self.at, self.steps = 0, 0
        return self._observe()

    def _observe(self):
        return [self.at / 5, abs(self.at) / 5, self.steps / 20, 1.0]

    def step(self, action):
        self.at += 1 if action == 1 else -1
        self.steps += 1
        return self._observe(), 1.0 if self.at == 5 else -0.01, abs(self.at) == 5, self.steps >= 20


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
    def __init__(self, n_observations, n_actions):
        super().__init__()
        self.layer1 = nn.Linear(n_observations, 128)
        self.layer2 = nn.Linear(128, 128)
        self.layer3 = nn.Linear(128, n_actions)

    def forward(self, x):
        return self.layer3(F.relu(self.layer2(F.relu(self.layer1(x)))))


random.seed(0)
env = CorridorEnv()
policy_net = DQN(env.n_observations, env.n_actions).to(device)
target_net = DQN(env.n_observations, env.n_actions).to(device)
target_net.load_state_dict(policy_net.state_dict())
# 4*128*4 = 2048, 128*4 = 512, 128*128*4 = 65536, 512, 2*128*4 = 1024, 2*4 -> 512.
one = 2048 + 512 + 65536 + 512 + 1024 + 512
assert torch.cuda.memory_allocated() == 2 * one
optimizer = optim.AdamW(policy_net.parameters(), lr=3e-4, amsgrad=True)
memory = ReplayMemory(1000)
steps_done = 0


def select_action(state):
    global steps_done
    eps_threshold = EPS_END + (EPS_START - EPS_END) * math.exp(-1.0 * steps_done / EPS_DECAY)
    steps_done += 1
    if random.random() > eps_threshold:
        with torch.no_grad():
            return policy_net(state).max(1).indices.view(1, 1)
    return torch.tensor([[random.randrange(env.n_actions)]], device=device, dtype=torch.long)


def optimize_model():
    if len(memory) < BATCH_SIZE:
        return
    batch = Transition(*zip(*memory.sample(BATCH_SIZE)))
    non_final_mask = torch.tensor(tuple(s is not None for s in batch.next_state), device=device, dtype=torch.bool)
    non_final_next_states = torch.cat([s for s in batch.next_state if s is not None]).to(device)
    state_batch = torch.cat(batch.state).to(device)
    action_batch = torch.cat(batch.action).to(device)
    reward_batch = torch.cat(batch.reward).to(device)
    state_action_values = policy_net(state_batch).gather(1, action_batch)
    next_state_values = torch.zeros(BATCH_SIZE, device=device)
    with torch.no_grad():
        next_state_values[non_final_mask] = target_net(non_final_next_states).max(1).values
    expected = (next_state_values * GAMMA) + reward_batch
    loss = nn.SmoothL1Loss()(state_action_values, expected.unsqueeze(1))
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_value_(policy_net.parameters(), 100)
    optimizer.step()


durations = []
for episode in range(5):
    state = torch.tensor(env.reset(), dtype=torch.float32).unsqueeze(0)
    for t in count():
        action = select_action(state.to(device))
        observation, reward, terminated, truncated = env.step(action.item())
        reward = torch.tensor([reward])
        next_state = None if terminated else torch.tensor(observation, dtype=torch.float32).unsqueeze(0)
        memory.push(state, action.cpu(), next_state, reward)
        state = next_state
        optimize_model()
        target, policy = target_net.state_dict(), policy_net.state_dict()
        for key in policy:
            target[key] = policy[key] * TAU + target[key] * (1 - TAU)
        target_net.load_state_dict(target)
        del target, policy
        if terminated or truncated:
            durations.append(t + 1)
            break
assert len(durations) == 5 and len(memory) == sum(durations) >= BATCH_SIZE
del action, state, next_state
torch._C._cuda_clearCublasWorkspaces()
# Policy and target; gradients; exp_avg, exp_avg_sq and its maximum. The buffer lies on the host.
assert torch.cuda.memory_allocated() == 6 * one, (torch.cuda.memory_allocated(), 6 * one)
