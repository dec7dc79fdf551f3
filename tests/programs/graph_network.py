"""A graph neural network: messages along edges, summed with index_add and scatter, pooled by graph."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def scatter_mean(src, index, dim_size):
    out = torch.zeros(dim_size, src.size(1), device=src.device, dtype=src.dtype)
    out.scatter_add_(0, index.unsqueeze(-1).expand_as(src), src)
    count = torch.zeros(dim_size, device=src.device).index_add_(0, index, torch.ones_like(index, dtype=torch.float))
    return out / count.clamp(min=1).unsqueeze(-1)


class GraphConv(nn.Module):
    def __init__(self, fan_in, fan_out):
        super().__init__()
        self.own, self.neighbours = nn.Linear(fan_in, fan_out), nn.Linear(fan_in, fan_out, bias=False)

    def forward(self, x, edge_index):
        row, col = edge_index
        deg = torch.bincount(row, minlength=x.size(0)).to(x.dtype)
        norm = deg.pow(-0.5)
        norm[torch.isinf(norm)] = 0.0
        messages = self.neighbours(x)[col] * (norm[row] * norm[col]).unsqueeze(-1)
        return self.own(x).index_add(0, row, messages)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2, self.head = GraphConv(16, 64), GraphConv(64, 64), nn.Linear(64, 3)

    def forward(self, x, edge_index, batch):
        x = F.relu(self.conv1(x, edge_index))
        x = F.dropout(F.relu(self.conv2(x, edge_index)), p=0.5, training=self.training)
        num_graphs = int(batch.max()) + 1
        return self.head(scatter_mean(x, batch, num_graphs))


torch.manual_seed(0)
device = "cuda"
graphs, nodes, edges = 6, 20, 60
source = [torch.randint(0, nodes, (2, edges)) + g * nodes for g in range(graphs)]
edge_index = torch.cat(source, dim=1).to(device)
batch = torch.arange(graphs).repeat_interleave(nodes).to(device)
x, y = torch.randn(graphs * nodes, 16, device=device), torch.randint(0, 3, (graphs,), device=device)
# 2*360*8 = 5760 -> 6144; 120*8 = 960 -> 1024; 120*16*4 = 7680 (15 * 512); 6*8 -> 512.
data = 6144 + 1024 + 7680 + 512
assert torch.cuda.memory_allocated() == data, torch.cuda.memory_allocated()
loops = edge_index[0] == edge_index[1]
kept = edge_index[:, ~loops]
assert kept.shape == (2, edges * graphs - int(loops.sum()))
assert edge_index.unique().numel() <= graphs * nodes
del loops, kept

model = Net().to(device)
# 16*64*4 = 4096 twice and 256 -> 512; 64*64*4 = 16384 twice and 512; 3*64*4 = 768 -> 1024 and 512.
weights = (2 * 4096 + 512) + (2 * 16384 + 512) + (1024 + 512)
assert torch.cuda.memory_allocated() == data + weights
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
best = float("inf")
for epoch in range(4):
    model.train()
    out = model(x, edge_index, batch)
    loss = F.cross_entropy(out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        pred = model(x, edge_index, batch).argmax(dim=-1)
        acc = int((pred == y).sum()) / len(y)
    if loss < best:
        best = loss.item()
        state = {k: v.clone() for k, v in model.state_dict().items()}
    print(f"Epoch: {epoch:03d}, Loss: {loss:.4f}, Acc: {acc:.4f}")
del out, loss, pred, state
torch._C._cuda_clearCublasWorkspaces()
assert torch.cuda.memory_allocated() == data + 4 * weights, (torch.cuda.memory_allocated(), data + 4 * weights)
