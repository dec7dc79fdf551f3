"""Parts of five more packages, each for a step or two."""

import torch
from monai.inferers import sliding_window_inference
from monai.losses import DiceCELoss
from monai.networks.nets import UNet
from pytorch_optimizer import SOAP, Shampoo
from torch import nn
from torchdiffeq import odeint_adjoint
from vector_quantize_pytorch import ResidualVQ
from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

volumes = UNet(3, 1, 2, (16, 32, 64), (2, 2), num_res_units=1).cuda()
labels = torch.randint(0, 2, (2, 1, 32, 32, 32), device="cuda")
DiceCELoss(to_onehot_y=True, softmax=True)(volumes(torch.randn(2, 1, 32, 32, 32, device="cuda")), labels).backward()
with torch.no_grad():
    sliding_window_inference(torch.randn(1, 1, 48, 48, 48, device="cuda"), (32, 32, 32), 4, volumes)

codes = ResidualVQ(dim=128, codebook_size=256, num_quantizers=3, kmeans_init=True, threshold_ema_dead_code=2).cuda()
quantized, indices, losses = codes(torch.randn(4, 256, 128, device="cuda", requires_grad=True))
assert indices.dtype == torch.int64
(quantized.square().mean() + losses.sum()).backward()

decoder = Decoder(dim=256, depth=2, heads=4, rotary_pos_emb=True, attn_flash=True)
text = AutoregressiveWrapper(TransformerWrapper(num_tokens=256, max_seq_len=512, attn_layers=decoder)).cuda()
text(torch.randint(0, 256, (2, 513), device="cuda")).backward()
assert text.generate(prompts=torch.randint(0, 256, (1, 32), device="cuda"), seq_len=8).shape == (1, 8)

for kind in (SOAP, Shampoo):
    layer = nn.Linear(512, 512).cuda()
    optimizer = kind(layer.parameters())
    for _ in range(2):
        layer(torch.randn(8, 512, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

flow = nn.Sequential(nn.Linear(2, 50), nn.Tanh(), nn.Linear(50, 2)).cuda()
times = torch.linspace(0.0, 1.0, 5, device="cuda")
odeint_adjoint(
    lambda _, at: flow(at), torch.ones(1, 2, device="cuda"), times, adjoint_params=tuple(flow.parameters())
).sum().backward()
print("done")
