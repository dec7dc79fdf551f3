"""A small Llama's step on two processes of the host, parted as a prediction parts it: `two_processes.py WAY[+CHANGE]`.

Each also takes the step alone, and prints how far its gradients are off, as a share of the largest.
"""

import copy
import json
import os
import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from memviz.runner.plan import plan_of
from memviz.runner.rank_model import ModelStage, PipelineStep, check_tensor, hold_together, part_matrices
from memviz.runner.request import Request
from optimizations import apply_all

HOST = torch.device("cpu")
SETTINGS = {"sequence": "16", "batch": "2", "dtype": "fp32"}
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "vocab_size": 96,
}


def grads(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    found = {}
    for name, weight in model.named_parameters(remove_duplicate=False):
        grad: Any = weight.grad
        found[name] = grad.full_tensor() if isinstance(grad, DTensor) else grad
    return found


def step(chosen: str) -> float:
    way, _, name = chosen.partition("+")
    changes = ((name, {"tokens": "5"}),) if name else ()
    request = Request("config.json", SETTINGS, changes, config=json.dumps(CONFIG), parallel={way: "2"})
    plan = plan_of(request)
    torch.manual_seed(0)
    model: Any = plan.workload.build()
    alone = copy.deepcopy(model)
    apply_all(model, plan.optimizations)
    mesh = dist.init_device_mesh("cpu", (2,), mesh_dim_names=(way,))
    rank = mesh.get_local_rank()
    inputs = plan.workload.inputs(HOST)
    first, prefix = 0, ""
    if way == "pipeline":
        device: Any = SimpleNamespace(torch_device=HOST, inputs=lambda w: w.inputs(HOST), phase=lambda n: nullcontext())
        stage = ModelStage(model, rank, 2)
        passes = PipelineStep(plan, device, stage, stage, mesh)
        if passes._inputs:
            tokens = next(iter(passes._inputs.values()))
            inputs = {**inputs, **dict.fromkeys(("input_ids", "labels"), tokens[0] if rank == 0 else tokens)}
        passes()
        model, first, prefix = stage, 2 * rank, "whole."
    elif way == "tensor":
        check_tensor(model, 2)
        part_matrices(model, mesh)
        model(**inputs).loss.backward()
    else:
        model = hold_together(model, mesh, plan.parallel, 0)
        model(**inputs).loss.backward()
    alone(**inputs).loss.backward()
    expected, worst = grads(alone), 0.0
    for name, grad in grads(model).items():
        own = name.removeprefix(prefix).split(".")
        if own[1] == "layers":
            own[2] = str(int(own[2]) + first)
        near = expected[".".join(own)]
        worst = max(worst, float((grad - near).abs().max() / near.abs().max()))
    return worst


dist.init_process_group("gloo", init_method=os.environ["MEET_AT"], rank=int(os.environ["RANK"]), world_size=2)
for chosen in sys.argv[1:]:
    sys.stdout.write(f"{chosen} {step(chosen)}\n")
dist.destroy_process_group()
