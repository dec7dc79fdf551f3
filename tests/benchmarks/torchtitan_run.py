"""torchtitan's own training, without its data: `memviz predict --world-size N torchtitan_run.py FOLDER [OPTION ...]`.

FOLDER is a checkout of https://github.com/pytorch/torchtitan at 9dec370, the version of the table that is compared
(benchmarks/llama3_h100_202412_torchtitan.md), and OPTION what its `train.py` takes. Tokens are zeros, three batches of
them unless `--training.steps` says more, and the tokenizer only has the size of Llama 3's.
"""

import importlib
import sys
import types
from unittest.mock import MagicMock

import torch

WORDS = 128_256


class Tokenizer:
    n_words = WORDS


def batches(dataset, path, tokenizer, batch, length, *ranks):
    while True:
        yield torch.zeros(batch, length, dtype=torch.int64), torch.zeros(batch, length, dtype=torch.int64)


def stand_in(name, **contents):
    module = types.ModuleType(name)
    vars(module).update(contents)
    sys.modules[name] = module


def train(folder, *options):
    sys.path.insert(0, folder)
    stand_in("torchtitan.datasets", build_tokenizer=lambda *path: Tokenizer(), build_hf_data_loader=batches)
    stand_in("torchtitan.datasets.tokenizer", build_tokenizer=lambda *path: Tokenizer())
    stand_in("torch.utils.tensorboard", SummaryWriter=object)
    # Its own kernels in Triton are for a norm that nothing here asks for.
    sys.modules.update({"triton": MagicMock(), "triton.language": MagicMock()})
    importlib.import_module("torchtitan.models.norms")
    del sys.modules["triton"], sys.modules["triton.language"]
    from torchtitan.config_manager import JobConfig
    from train import main

    config = JobConfig()
    config.parse_args(["--model.name", "llama3", "--training.steps", "3", *options])
    main(config)
    figures = torch.cuda.memory_stats()
    peaks = (figures[f"{name}_bytes.all.peak"] / 2**30 for name in ("active", "reserved"))
    sys.stdout.write("active {:.2f} GiB, reserved {:.2f} GiB\n".format(*peaks))


train(*sys.argv[1:])
