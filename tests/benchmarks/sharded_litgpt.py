"""litgpt's finetuning on several GPUs for `memviz predict --world-size N`: `sharded_litgpt.py gpus=N model=... ...`.

The settings are those of `published.tsv`, and litgpt, Lightning and what they need are looked for on PYTHONPATH.
"""

import sys

import torch
from published_programs import PROGRAMS

PROGRAMS["litgpt"](dict(pair.split("=") for pair in sys.argv[1:]))
sys.stdout.write(f"allocated {torch.cuda.max_memory_allocated() / 1e9:.2f} GB\n")
