"""A CTC speech model: spectrogram by FFT, SpecAugment, a convolution and a GRU, greedy decoding to text."""

import random

import torch
import torch.nn as nn
import torch.nn.functional as F

device = torch.device("cuda")
alphabet = "_abcdefghijklmnopqrstuvwxyz '"
char_to_int = {c: i for i, c in enumerate(alphabet)}


class SpeechModel(nn.Module):
    def __init__(self, n_feats=65, hidden=64):
        super().__init__()
        self.conv = nn.Conv1d(n_feats, hidden, 5, stride=2, padding=2)
        self.norm = nn.LayerNorm(hidden)
        self.gru = nn.GRU(hidden, hidden, bidirectional=True, batch_first=True)
        self.fc = nn.Linear(2 * hidden, len(alphabet))

    def forward(self, spec):
        x = self.norm(F.gelu(self.conv(spec)).transpose(1, 2))
        return F.log_softmax(self.fc(self.gru(x)[0]), dim=-1).transpose(0, 1)


def spectrogram(waves, n_fft=128, hop=64):
    window = torch.hann_window(n_fft, device=waves.device)
    return torch.stft(waves, n_fft, hop, window=window, return_complex=True).abs().pow(2).clamp(min=1e-10).log10()


def augment(spec):
    low = random.randint(0, 40)
    spec[:, low : low + 8, :] = 0
    start = torch.randint(0, 5, (1,)).item()
    return spec.index_fill_(2, torch.arange(start, start + 2, device=spec.device), 0.0)


def greedy(log_probs, lengths):
    texts = []
    for row, length in zip(log_probs.argmax(dim=2).t().cpu(), lengths):
        out, last = [], 0
        for token in row[:length].tolist():
            if token != last and token != 0:
                out.append(alphabet[token])
            last = token
        texts.append("".join(out))
    return texts


random.seed(0)
torch.manual_seed(0)
model = SpeechModel().to(device)
h = 64
# Convolution 64*65*5*4 = 83200 -> 83456; a GRU's direction: 3h*h*4 = 49152 twice and two biases of 768, in one block.
conv, norm = 83456 + 512, 2 * 512
gru = 2 * (2 * 49152 + 2 * 768)
assert 3 * h * h * 4 == 49152 and 3 * h * 4 == 768 and gru % 512 == 0
# 29*128*4 = 14848 = 29 * 512.
weights = conv + norm + gru + 14848 + 512
assert torch.cuda.memory_allocated() == weights, (torch.cuda.memory_allocated(), weights)
at_rest = torch.cuda.memory_allocated()
ctc = nn.CTCLoss(blank=0, zero_infinity=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=5e-4, total_steps=4)
for step in range(3):
    texts = ["hello you", "ctc", "what is"]
    targets = torch.tensor([char_to_int[c] for t in texts for c in t])
    target_lengths = torch.tensor([len(t) for t in texts], dtype=torch.long)
    waves = torch.randn(3, 1536, device=device)
    spec = augment(spectrogram(waves))
    assert spec.shape == (3, 65, 25)
    log_probs = model(spec)
    input_lengths = torch.full((3,), log_probs.size(0), dtype=torch.long)
    loss = ctc(log_probs, targets.to(device), input_lengths, target_lengths)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    print(f"step {step}: loss {loss.item():.3f} lr {scheduler.get_last_lr()[0]:.2e} {greedy(log_probs, [13, 10, 7])}")
optimizer.zero_grad()
del waves, spec, log_probs, loss
torch._C._cuda_clearCublasWorkspaces()
# Adam's moments are apart: four biases of the GRU take 1024 bytes each.
apart = weights + 4 * (1024 - 768)
assert torch.cuda.memory_allocated() == at_rest + 2 * apart, (torch.cuda.memory_allocated(), at_rest, weights)
