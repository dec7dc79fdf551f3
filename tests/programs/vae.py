"""A variational autoencoder in the manner of PyTorch's own example."""

import torch
import torch.utils.data
from torch import nn, optim
from torch.nn import functional as F

torch.manual_seed(1)
use_cuda = torch.cuda.is_available()
device = torch.device("cuda" if use_cuda else "cpu")
kwargs = {"num_workers": 0, "pin_memory": True} if use_cuda else {}
assert use_cuda


class VAE(nn.Module):
    def __init__(self):
        super(VAE, self).__init__()
        self.fc1 = nn.Linear(784, 300)
        self.fc21 = nn.Linear(300, 20)
        self.fc22 = nn.Linear(300, 20)
        self.fc3 = nn.Linear(20, 300)
        self.fc4 = nn.Linear(300, 784)

    def encode(self, x):
        h1 = F.relu(self.fc1(x))
        return self.fc21(h1), self.fc22(h1)

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        return mu + torch.randn_like(std) * std

    def decode(self, z):
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z))))

    def forward(self, x):
        mu, logvar = self.encode(x.view(-1, 784))
        return self.decode(self.reparameterize(mu, logvar)), mu, logvar


images = torch.utils.data.TensorDataset(torch.rand(256, 1, 28, 28), torch.zeros(256, dtype=torch.long))
train_loader = torch.utils.data.DataLoader(images, batch_size=128, shuffle=True, **kwargs)
test_loader = torch.utils.data.DataLoader(images, batch_size=128, shuffle=False, **kwargs)
model = VAE().to(device)
# 784*300*4 = 940800 -> 941056 (1838 * 512); 300*4 -> 1536; 20*300*4 = 24000 -> 24064; 20*4 -> 512; 784*4 -> 3584.
weights = (941056 + 1536) + 2 * (24064 + 512) + (24064 + 1536) + (941056 + 3584)
assert torch.cuda.memory_allocated() == weights, (torch.cuda.memory_allocated(), weights)
# None is larger than 1 MiB, and together they fit a segment of 2 MiB.
assert torch.cuda.memory_reserved() == 2 * 2**20, torch.cuda.memory_reserved()
optimizer = optim.Adam(model.parameters(), lr=1e-3)


def loss_function(recon_x, x, mu, logvar):
    BCE = F.binary_cross_entropy(recon_x, x.view(-1, 784), reduction="sum")
    KLD = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return BCE + KLD


def train(epoch):
    model.train()
    train_loss = 0
    for batch_idx, (data, _) in enumerate(train_loader):
        data = data.to(device)
        optimizer.zero_grad()
        recon_batch, mu, logvar = model(data)
        loss = loss_function(recon_batch, data, mu, logvar)
        loss.backward()
        train_loss += loss.item()
        optimizer.step()
        print(
            "Train Epoch: {} [{}/{}]\tLoss: {:.6f}".format(
                epoch, batch_idx * len(data), len(train_loader.dataset), loss.item() / len(data)
            )
        )
    print("====> Epoch: {} Average loss: {:.4f}".format(epoch, train_loss / len(train_loader.dataset)))


def test(epoch):
    model.eval()
    test_loss = 0
    with torch.no_grad():
        for i, (data, _) in enumerate(test_loader):
            data = data.to(device)
            recon_batch, mu, logvar = model(data)
            test_loss += loss_function(recon_batch, data, mu, logvar).item()
            if i == 0:
                n = min(data.size(0), 8)
                comparison = torch.cat([data[:n], recon_batch.view(128, 1, 28, 28)[:n]])
                grid = (comparison.cpu() * 255).to(torch.uint8).numpy()
                assert grid.shape == (16, 1, 28, 28)
    print("====> Test set loss: {:.4f}".format(test_loss / len(test_loader.dataset)))


for epoch in range(1, 3):
    train(epoch)
    test(epoch)
    with torch.no_grad():
        sample = model.decode(torch.randn(64, 20).to(device)).cpu()
torch._C._cuda_clearCublasWorkspaces()
# Weights, gradients, Adam's two moments; its step counters lie on the host.
assert torch.cuda.memory_allocated() == 4 * weights, (torch.cuda.memory_allocated(), 4 * weights)
