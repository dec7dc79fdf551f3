"""A word-level LSTM: state carried from batch to batch and cut off, then a classifier on packed sequences."""

import math
import time

import torch
import torch.nn as nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

device = torch.device("cuda")
ntoken, emsize, nhid, nlayers, bptt, batch_size = 1000, 64, 128, 2, 8, 8


def nearest(count):
    return (count + 511) // 512 * 512


class RNNModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.2)
        self.encoder = nn.Embedding(ntoken, emsize)
        self.rnn = nn.LSTM(emsize, nhid, nlayers, dropout=0.2)
        self.decoder = nn.Linear(nhid, ntoken)

    def forward(self, input, hidden):
        output, hidden = self.rnn(self.drop(self.encoder(input)), hidden)
        return nn.functional.log_softmax(self.decoder(self.drop(output)).view(-1, ntoken), dim=1), hidden

    def init_hidden(self, bsz):
        weight = next(self.parameters())
        return weight.new_zeros(nlayers, bsz, nhid), weight.new_zeros(nlayers, bsz, nhid)


def repackage_hidden(h):
    if isinstance(h, torch.Tensor):
        return h.detach()
    return tuple(repackage_hidden(v) for v in h)


def batchify(data, bsz):
    nbatch = data.size(0) // bsz
    return data.narrow(0, 0, nbatch * bsz).view(bsz, -1).t().contiguous().to(device)


def get_batch(source, i):
    seq_len = min(bptt, len(source) - 1 - i)
    return source[i : i + seq_len], source[i + 1 : i + 1 + seq_len].view(-1)


corpus = batchify(torch.randint(0, ntoken, (200,)), batch_size)
assert corpus.shape == (25, 8)
assert torch.cuda.memory_allocated() == nearest(25 * 8 * 8)
model = RNNModel().to(device)
weights = nearest(ntoken * emsize * 4) + nearest(ntoken * nhid * 4) + nearest(ntoken * 4)
for layer in range(nlayers):
    width = emsize if layer == 0 else nhid
    # All weights of the layers are in one block, whose parts need no rounding here.
    weights += 4 * nhid * width * 4 + 4 * nhid * nhid * 4 + 2 * 4 * nhid * 4
criterion, lr = nn.NLLLoss(), 20.0
for epoch in range(1):
    model.train()
    total_loss, start_time = 0.0, time.time()
    hidden = model.init_hidden(batch_size)
    for batch, i in enumerate(range(0, corpus.size(0) - 1, bptt)):
        data, targets = get_batch(corpus, i)
        model.zero_grad()
        hidden = repackage_hidden(hidden)
        output, hidden = model(data, hidden)
        loss = criterion(output, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-lr)
        total_loss += loss.item()
        if batch % 2 == 0 and batch > 0:
            cur_loss = total_loss / 2
            print(
                f"| epoch {epoch} | {batch} batches | ms {(time.time() - start_time) * 500:5.2f} | "
                f"loss {cur_loss:5.2f} | ppl {math.exp(cur_loss):8.2f}"
            )
            total_loss = 0.0
    lr /= 4.0

sentences = [torch.randint(0, ntoken, (length,)) for length in (12, 9, 5, 3)]
lengths = torch.tensor([len(s) for s in sentences])
padded = pad_sequence(sentences, batch_first=True).to(device)
with torch.no_grad():
    embedded = model.encoder(padded)
    packed = pack_padded_sequence(embedded, lengths.cpu(), batch_first=True, enforce_sorted=True)
    assert packed.data.shape == (29, emsize) and packed.batch_sizes.tolist()[0] == 4
    encoded = torch.randn(4, 12, nhid, device=device)
    unpacked, back = pad_packed_sequence(packed, batch_first=True)
    assert unpacked.shape == (4, 12, emsize) and back.tolist() == [12, 9, 5, 3]
    last = encoded[torch.arange(4), lengths - 1]
    assert last.shape == (4, nhid)
del embedded, packed, encoded, unpacked, last, padded
del output, loss, data, targets, hidden, p
torch._C._cuda_clearCublasWorkspaces()
# Weights, gradients, and the random states that cuDNN keeps for its dropout.
held, states = torch.cuda.memory_allocated() - nearest(25 * 8 * 8), 2 << 20
assert held == 2 * weights + states, (held, weights)
