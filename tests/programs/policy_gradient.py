"""Proximal policy optimization: a rollout on the card, advantages backwards in time, and shuffled minibatches."""

import numpy as np
import torch
import torch.nn as nn
from torch.distributions import Categorical

envs, steps, updates = 4, 32, 2


class Environment:
    """A pole that falls after 12 steps."""

    def reset(self):
        self.at = np.zeros(envs, dtype=int)
        return np.random.randn(envs, 4).astype(np.float32)

    def step(self, action):
        assert action.shape == (envs,) and action.dtype == np.int64
        self.at += 1
        ended = self.at >= 12
        self.at[ended] = 0
        return np.random.randn(envs, 4).astype(np.float32), np.ones(envs), ended


def layer(i, o, gain=2**0.5):
    linear = nn.Linear(i, o)
    nn.init.orthogonal_(linear.weight, gain)
    nn.init.constant_(linear.bias, 0.0)
    return linear


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
actor = nn.Sequential(layer(4, 64), nn.Tanh(), layer(64, 2, 0.01)).to(device)
critic = nn.Sequential(layer(4, 64), nn.Tanh(), layer(64, 1, 1.0)).to(device)
optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=2.5e-4, eps=1e-5)
obs = torch.zeros((steps, envs, 4)).to(device)
actions, logprobs, rewards, dones, values = (torch.zeros((steps, envs)).to(device) for _ in range(5))
world = Environment()
state, done = torch.Tensor(world.reset()).to(device), torch.zeros(envs).to(device)
for _ in range(updates):
    for t in range(steps):
        obs[t], dones[t] = state, done
        with torch.no_grad():
            policy = Categorical(logits=actor(state))
            action = policy.sample()
            values[t] = critic(state).flatten()
        actions[t], logprobs[t] = action, policy.log_prob(action)
        new, reward, ended = world.step(action.cpu().numpy())
        rewards[t] = torch.tensor(reward).to(device).view(-1)
        state, done = torch.Tensor(new).to(device), torch.Tensor(ended).to(device)
    with torch.no_grad():
        following = critic(state).reshape(1, -1)
        advantages, last = torch.zeros_like(rewards), 0
        for t in reversed(range(steps)):
            alive = 1.0 - (done if t == steps - 1 else dones[t + 1])
            next_value = following if t == steps - 1 else values[t + 1]
            last = rewards[t] + 0.99 * next_value * alive - values[t] + 0.95 * 0.99 * alive * last
            advantages[t] = last
        returns = advantages + values
    flat = [x.reshape(-1, *x.shape[2:]) for x in (obs, actions, logprobs, advantages, returns)]
    order = np.arange(envs * steps)
    for _ in range(2):
        np.random.shuffle(order)
        for begin in range(0, len(order), 32):
            o, a, lp, adv, ret = (x[order[begin : begin + 32]] for x in flat)
            policy = Categorical(logits=actor(o))
            ratio = (policy.log_prob(a.long()) - lp).exp()
            adv = (adv - adv.mean()) / (adv.std() + 1e-8)
            loss = torch.max(-adv * ratio, -adv * ratio.clamp(0.8, 1.2)).mean() - 0.01 * policy.entropy().mean()
            loss = loss + 0.5 * ((critic(o).view(-1) - ret) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_([*actor.parameters(), *critic.parameters()], 0.5)
            optimizer.step()
explained = 1 - np.var(flat[4].cpu().numpy()) / max(1e-8, np.var(values.cpu().numpy()))
print(loss.item(), explained)
assert advantages.is_cuda and advantages.shape == (steps, envs)
