"""Masked autoencoder: patches are shuffled by noise, a quarter is kept, and the order is undone for the decoder."""

import torch
import torch.nn as nn

patches, width, kept = 64, 96, 16


def chosen(x):
    noise = torch.rand(x.shape[:2], device=x.device)
    shuffle = noise.argsort(dim=1)
    restore = shuffle.argsort(dim=1)
    part = x.gather(1, shuffle[:, :kept, None].repeat(1, 1, x.shape[2]))
    mask = torch.ones(x.shape[:2], device=x.device)
    mask[:, :kept] = 0
    return part, mask.gather(1, restore), restore


encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(width, 4, 192, batch_first=True, norm_first=True), 2)
decoder = nn.TransformerEncoderLayer(width, 4, 192, batch_first=True, activation="gelu")
model = nn.ModuleDict({"embed": nn.Conv2d(3, width, 4, 4), "encoder": encoder, "decoder": decoder})
model["out"] = nn.Linear(width, 48)
model.register_parameter("token", nn.Parameter(torch.zeros(1, 1, width)))
model.cuda()
optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95))
for _ in range(2):
    images = torch.rand(4, 3, 32, 32, device="cuda")
    x = model["embed"](images).flatten(2).transpose(1, 2)
    part, mask, restore = chosen(x)
    assert part.shape == (4, kept, width)
    latent = model["encoder"](part)
    whole = torch.cat([latent, model.token.repeat(4, patches - kept, 1)], 1)
    whole = whole.gather(1, restore.unsqueeze(-1).expand(-1, -1, width))
    out = model["out"](model["decoder"](whole))
    target = images.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 1, 4, 5).reshape(4, patches, 48)
    loss = (((out - target) ** 2).mean(-1) * mask).sum() / mask.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
assert mask.sum().item() == 4 * (patches - kept)
