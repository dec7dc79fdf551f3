# %% [markdown]
# # Fine-tuning in a notebook
# Cells one after the other, names used again, errors caught and looked at.

# %%
import gc
import sys
import warnings

import torch
import torch.nn as nn

warnings.filterwarnings("ignore")
print(sys.version.split()[0], torch.__version__)

# %%
try:
    torch.cuda.init()
    device = torch.device("cuda:0")
    props = torch.cuda.get_device_properties(0)
    print(torch.cuda.get_device_name(0), f"{props.total_memory / 1e9:.1f} GB", torch.cuda.get_device_capability())
except (RuntimeError, AssertionError) as e:
    print("no GPU:", e)
    device = torch.device("cpu")
assert device.type == "cuda"


# %%
def mem(label=""):
    a, r, m = (
        f() / 2**20 for f in (torch.cuda.memory_allocated, torch.cuda.memory_reserved, torch.cuda.max_memory_allocated)
    )
    print(f"{label:>12}: allocated {a:8.2f} MiB, reserved {r:8.2f} MiB, peak {m:8.2f} MiB")
    return torch.cuda.memory_allocated()


assert mem("start") == 0

# %%
x = torch.randn(1000, 1000, device=device)
# 4,000,000 bytes are 7812.5 times 512.
assert mem("x") == 7813 * 512
y = x @ x.T
torch._C._cuda_clearCublasWorkspaces()
# From the same 20 MiB, whose rest after both is more than 1 MiB.
assert mem("y") == 2 * 7813 * 512

# %%
try:
    z = x @ torch.randn(999, 3, device=device)
except RuntimeError as e:
    print("RuntimeError:", e)
    assert "shapes cannot be multiplied" in str(e)
try:
    x + torch.ones(1000)
except RuntimeError as e:
    assert "same device" in str(e)
try:
    x.numpy()
except TypeError as e:
    print("TypeError:", e)
try:
    torch.zeros(1, device="cuda:7")
except Exception as e:
    print(type(e).__name__, "for a card that is not there")
else:
    raise AssertionError("there is only one card")

# %%
del x, y
gc.collect()
torch.cuda.empty_cache()
assert mem("deleted") == 0 == torch.cuda.memory_reserved()

# %%
torch.cuda.reset_peak_memory_stats()
model = nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0), 2).to(device)
# A layer: 192*64*4 = 49152, 192*4 -> 1024, 64*64*4 = 16384, 512, 128*64*4 = 32768, 512, 32768, 512, four norms of 512.
layer = 49152 + 1024 + 16384 + 512 + 32768 + 512 + 32768 + 512 + 4 * 512
assert mem("model") == 2 * layer

# %%
opt = torch.optim.NAdam(model.parameters(), lr=1e-3)
history = []
for step in range(3):
    batch = torch.randn(8, 16, 64, device=device)
    padding = (
        torch.arange(16, device=device)[None] >= torch.tensor([16, 12, 9, 3, 16, 16, 1, 5], device=device)[:, None]
    )
    out = model(batch, src_key_padding_mask=padding)
    loss = (out[~padding] ** 2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    history.append(loss.item())
assert out[~padding].shape == (78, 64)
mem("trained")
print([f"{h:.3f}" for h in history], "last is best:", history[-1] <= min(history))

# %%
try:
    torch.save(model.state_dict(), "/nonexistent/folder/model.pt")
except (OSError, RuntimeError) as err:
    print("cannot save:", type(err).__name__)

# %%
model.eval()
with torch.no_grad():
    preds = model(batch)
    print(preds.mean().item(), preds.shape, preds[0, 0, :3])
    confusion = torch.zeros(3, 3, dtype=torch.long)
    for t, p in zip(torch.tensor([0, 1, 2]), preds[:3, 0, :3].argmax(-1).cpu()):
        confusion[t, p] += 1
    print(confusion.sum().item())

# %%
opt.zero_grad(set_to_none=True)
del batch, padding, out, loss, preds
gc.collect()
torch._C._cuda_clearCublasWorkspaces()
# NAdam: two moments a weight; its counters and products lie on the host.
assert mem("at rest") == 3 * 2 * layer, torch.cuda.memory_allocated()
