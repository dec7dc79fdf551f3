"""What a stack says by the names of its functions and files, where people agree on names.

A name alone proves nothing, so what rests on one is only probable. The innermost name that says something counts:
a cache that is set up while weights are loaded is a cache.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from memviz.analysis.cache import kept
from memviz.analysis.callstacks.frames import LAST_PYTHON_KIND, frame_kinds, path_of
from memviz.analysis.callstacks.stack_places import first_in_stack
from memviz.trace.distinct import distinct, is_among
from memviz.trace.model import Bytes1, Category, Trace


@dataclass(frozen=True)
class Name:
    category: Category
    functions: re.Pattern[str] | None = None
    """Found anywhere in the function's name."""
    files: re.Pattern[str] | None = None
    """Found anywhere in the path."""


def _words(text: str) -> re.Pattern[str]:
    return re.compile(text, re.IGNORECASE)


NAMES = (
    Name(Category.KV_CACHE, _words(r"kv_?cache|key_value_cache|init_cache|cache_one_gpu|update_cache|append_kv")),
    Name(
        Category.KV_CACHE,
        _words(r"update|append|get_seq|__init__|lazy_init|crop|reorder"),
        _words(r"/(cache_utils|kv_?cache)"),
    ),
    Name(Category.GRAPH_POOL, None, _words(r"/torch/cuda/graphs\.py$|/cudagraph_trees\.py$")),
    Name(
        Category.COLLECTIVE,
        _words(
            r"all_gather|reduce_scatter|all_reduce|all_to_all|^broadcast|_unshard$|^unshard$|^wait_for_unshard|foreach_reduce"
        ),
        _words(r"/torch/distributed/|/deepspeed/|/megatron/|/fairscale/|/apex/"),
    ),
    Name(Category.GRADIENT, _words(r"^__init__$|allocate"), _words(r"/param_and_grad_buffer\.py$")),
    Name(
        Category.OPTIMIZER_STATE,
        _words(r"__init__|init_|build|setup|create|get_|load"),
        _words(r"/optim/|/optimizers?/|/optimizers?\.py$|_optimizer\.py$|/adamw?\.py$|/bitsandbytes/optim"),
    ),
    Name(Category.OPTIMIZER_STATE, _words(r"init_(optimizer_)?states?$|exp_avg|initialize_optimizer_states")),
    Name(
        Category.INPUT,
        _words(
            r"collate|get_batch|next_batch|prepare_input|_prepare_batch|batch_to|send_to_device|to_device|"
            r"recursive_to|move_to|pin_memory|load_batch|make_batch|random_batch"
        ),
    ),
    Name(
        Category.INPUT,
        _words(r"^apply$|^to$|^cuda$|recursive_apply|__next__|__iter__|__getitem__"),
        _words(r"/data/|/dataloader|/dataset|/batch"),
    ),
    Name(
        Category.PARAMETER,
        _words(
            r"load_(model|weight|weights|state|state_dict|file|checkpoint|pretrained|tensors?)|from_pretrained|"
            r"create_(weights|module|params)|init_(weight|weights|all_weights|params)|set_module_tensor_to_device|"
            r"materiali[sz]e|reset_parameters|get_model$|build_model|model_provider|dispatch_model|quantize_weights?"
        ),
    ),
    Name(Category.PARAMETER, _words("get_tensor|load"), _words(r"/safetensors/")),
)
_COLLECTIVES = ("c10d::", "void c10d::")
"""C++ by which torch lets processes exchange tensors."""


def named(trace: Trace) -> Bytes1:
    """A Category per stack, and one more at the end for NO_STACK; UNKNOWN where no name says anything."""
    return kept(trace, named, lambda: _read(trace))


def _read(trace: Trace) -> Bytes1:
    of_frame = _of_frames(trace)
    stacks = trace.stacks
    place = first_in_stack(stacks, of_frame != Category.UNKNOWN)
    of_stack = np.full(len(stacks) + 1, Category.UNKNOWN, dtype=np.uint8)
    known = np.flatnonzero(place >= 0)
    of_stack[known] = of_frame[stacks.indices[place[known]]]
    return of_stack


def _of_frames(trace: Trace) -> Bytes1:
    frames, strings = trace.stacks.frames, trace.strings
    python = np.flatnonzero(frame_kinds(trace) <= LAST_PYTHON_KIND)
    categories = np.full(len(frames), Category.UNKNOWN, dtype=np.uint8)
    pairs, pair_of = np.unique(
        frames.filename[python].astype(np.int64) << 32 | frames.name[python], return_inverse=True
    )
    of_pair = [_meaning(strings[pair & 0xFFFFFFFF], path_of(strings[pair >> 32])) for pair in pairs.tolist()]
    categories[python] = np.array(of_pair, dtype=np.uint8)[pair_of] if len(of_pair) else 0
    collective = [int(code) for code in distinct(frames.name) if strings[code].startswith(_COLLECTIVES)]
    categories[is_among(frames.name, collective)] = Category.COLLECTIVE
    return categories


def _meaning(function: str, path: str) -> Category:
    for name in NAMES:
        fits = name.functions is None or name.functions.search(function)
        if fits and (name.files is None or name.files.search(path)):
            return name.category
    return Category.UNKNOWN
