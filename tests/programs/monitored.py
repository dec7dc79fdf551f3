"""A training script that writes the card's own figures into its log, as NVML and nvidia-smi give them."""

import shutil
import subprocess

import pynvml
import torch

assert shutil.which("nvidia-smi")
print(subprocess.run(["nvidia-smi"], capture_output=True, text=True, check=True).stdout)
held = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
query = "nvidia-smi --query-gpu=name,memory.total,memory.used,temperature.gpu --format=csv,noheader,nounits"
name, total, used, temperature = subprocess.check_output(query, shell=True, text=True).strip().split(", ")
free, all_of_it = torch.cuda.mem_get_info()
assert name == torch.cuda.get_device_name() and temperature == "0"
assert (int(total), int(used)) == (all_of_it >> 20, (all_of_it - free) >> 20)
listed = subprocess.check_output(["nvidia-smi", "-L"], text=True)
assert listed.startswith(f"GPU 0: {name}") and len(listed.splitlines()) == torch.cuda.device_count()

pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
info = pynvml.nvmlDeviceGetMemoryInfo(handle)
assert (info.total, info.free, info.used) == (all_of_it, free, all_of_it - free) and info.used > held.nbytes
assert pynvml.nvmlDeviceGetName(handle) == name
assert torch.cuda.utilization() == 0 and f"{info.used / (1 << 20):.3f} MB" in torch.cuda.list_gpu_processes()
assert torch.cuda.temperature() == torch.cuda.power_draw() == torch.cuda.clock_rate() == 0
try:
    pynvml.nvmlDeviceGetNvLinkState(handle, 0)
except pynvml.NVMLError_NotSupported as error:
    print("no such function:", error)
else:
    raise AssertionError("an answer of nothing")
