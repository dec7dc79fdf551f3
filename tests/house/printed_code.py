"""A separate program: run code that memviz printed on small models, and report the results.

It is given {name: code} as JSON and a folder with a folder for each name, whose files lie next to the code. It imports
nothing of this repository, so that what the code finds is what its reader's environment has. A name is that of an
optimization, of several with + between them, or "library of MODEL: " and those for calls of libraries.
"""

import io
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

os.environ["HF_HUB_OFFLINE"] = "1"
TOKENS = torch.arange(3, 35).reshape(2, 16)
Names = dict[str, Any]


def llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 2, "vocab_size": 512}
    return LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2))


def autoencoder() -> Any:
    from diffusers import AutoencoderKL

    torch.manual_seed(0)
    sizes: dict[str, Any] = {"block_out_channels": (8, 16), "norm_num_groups": 4, "latent_channels": 4}
    downs, ups = ("DownEncoderBlock2D",) * 2, ("UpDecoderBlock2D",) * 2
    return AutoencoderKL(down_block_types=downs, up_block_types=ups, sample_size=32, **sizes)


def ltx() -> Any:
    from diffusers import LTXVideoTransformer3DModel

    torch.manual_seed(0)
    heads: dict[str, Any] = {"num_attention_heads": 2, "attention_head_dim": 16, "cross_attention_dim": 32}
    return LTXVideoTransformer3DModel(in_channels=8, out_channels=8, num_layers=2, caption_channels=16, **heads)


class Operators(TorchDispatchMode):
    """Notes the name and the shape of each result."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, torch.Size]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        first = out[0] if isinstance(out, tuple | list) and out else out
        if isinstance(first, Tensor):
            self.seen.append((func.name(), first.shape))
        return out


def operators(names: Names) -> list[tuple[str, torch.Size]]:
    with Operators() as noted, torch.no_grad():
        forward(names)
    return noted.seen


def forward(names: Names) -> Any:
    model = names["model"]
    output = model(**inputs_of(model))
    assert torch.isfinite(output["loss"] if "loss" in output else output["sample"]).all()
    return output


def inputs_of(model: Any) -> Names:
    if hasattr(model, "enable_tiling"):
        return {"sample": torch.ones(2, 3, 64, 64)}
    if hasattr(model, "caption_projection"):
        text = {"encoder_hidden_states": torch.ones(1, 6, 16), "encoder_attention_mask": torch.ones(1, 6) > 0}
        sides = {"num_frames": 2, "height": 2, "width": 2}
        return {"hidden_states": torch.ones(1, 8, 8), "timestep": torch.tensor([5]), **text, **sides}
    return {"input_ids": TOKENS, "labels": TOKENS}


def trained(names: Names) -> int:
    return sum(weight.numel() for weight in names["model"].parameters() if weight.requires_grad)


def weight_bytes(names: Names) -> int:
    model = names["model"]
    return sum(each.numel() * each.element_size() for each in (*model.parameters(), *model.buffers()))


def saved_bytes(names: Names) -> int:
    saved: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor):
        forward(names)
    return sum(saved.values())


def inner_rows(names: Names) -> int:
    """Return the most rows among the widest matrix products of feed-forwards."""
    return max(
        (shape[:-1].numel() for name, shape in operators(names) if "mm" in name and shape[-1:] == (256,)), default=0
    )


def logits(names: Names) -> int:
    return sum(shape[-1:] == (512,) and shape[:-1].numel() == TOKENS.numel() for _, shape in operators(names))


def flash_kernels(names: Names) -> int:
    return sum("flash_attention" in name for name, _ in operators(names))


def largest_picture(names: Names) -> int:
    return max(shape.numel() for name, shape in operators(names) if "convolution" in name)


def kind_of_cache(names: Names) -> Any:
    output = names["model"](input_ids=TOKENS, labels=TOKENS, use_cache=True)
    return str(type(next(output[key] for key in ("cache", "past_key_values") if key in set(output)).layers[0]))


def step(names: Names) -> torch.optim.Optimizer:
    optimizer = torch.optim.AdamW(names["model"].parameters(), lr=1e-2)
    forward(names).loss.backward()
    names["gradients"] = sum(weight.grad is not None for weight in names["model"].parameters())
    optimizer.step()
    return optimizer


def gradients_after_backward(names: Names) -> int:
    step(names)
    names["model"].zero_grad()
    return int(names["gradients"])


def state_bytes(names: Names) -> int:
    """Return the size of the optimizer states in a file, independent of their classes."""
    file = io.BytesIO()
    torch.save(list(step(names).state.values()), file)
    return len(file.getvalue())


def main_gradients(names: Names) -> int:
    names["model"].zero_grad()
    forward(names).loss.backward()
    return sum(getattr(weight, "main_grad", None) is not None for weight in names["model"].parameters())


def host_bytes(names: Names) -> int:
    kind = names.get("WeightOffload") or names.get("ActivationOffload")
    if kind is None:
        return 0
    module = sys.modules[kind.__module__]
    if hasattr(module, "_is_on_host"):
        # There is no other device here, so the CPU is treated as the device.
        module._is_on_host = lambda tensor: False
    forward(names)
    held = module.host_bytes(names["model"])
    return int(getattr(held, "most", held))


def rows_and_weights(names: Names) -> tuple[int, Tensor]:
    """Take a step and return the most rows that the model got at once, and its weights."""
    if not names["rows"]:
        names["model"](**names["inputs"]).loss.backward()
        names["optimizer"].step()
    weights = torch.cat([weight.detach().flatten().float() for weight in names["model"].parameters()])
    return max(names["rows"]), weights


def same_step_in_rows(before: Any, after: Any) -> bool:
    others = before[1].shape != after[1].shape  # adapters, codes
    return (before[0], after[0]) == (2, 1) and (others or torch.allclose(before[1], after[1], atol=1e-6))


def from_library(names: Names) -> bool:
    """Return whether an optimizer, a weight or a module is of a library, or its call has given a result."""
    model, optimizer = names["model"], names["optimizer"]
    kinds = {type(one).__module__.partition(".")[0] for one in (optimizer, *model.parameters(), *model.modules())}
    has_hooks = any(hasattr(module, "_diffusers_hook") for module in model.modules())
    forward(names)
    return bool({"torchao", "bitsandbytes"} & kinds or has_hooks or {"output", "arguments"} & names.keys())


def less(before: Any, after: Any) -> bool:
    return bool(after < before)


def more(before: Any, after: Any) -> bool:
    return bool(after > before)


def differs(before: Any, after: Any) -> bool:
    return bool(before != after)


def settings(_: Names) -> bool:
    return os.environ.get("PYTORCH_CUDA_ALLOC_CONF") == "expandable_segments:True"


EFFECTS: dict[str, tuple[Callable[[], Any], Callable[[Names], Any], Callable[[Any, Any], bool]]] = {
    "allocator_settings": (llama, settings, more),
    "attention_backend": (llama, flash_kernels, less),
    "lora": (llama, trained, less),
    "chunked_cross_entropy": (llama, logits, less),
    "split_feed_forward": (llama, inner_rows, less),
    "chunked_feed_forward": (llama, inner_rows, less),
    "vae_slicing": (autoencoder, largest_picture, less),
    "vae_tiling": (autoencoder, largest_picture, less),
    "kv_cache": (llama, kind_of_cache, differs),
    "weight_quantization": (llama, weight_bytes, less),
    "layerwise_casting": (llama, weight_bytes, less),
    "weight_offload": (llama, host_bytes, more),
    "checkpointing": (llama, saved_bytes, less),
    "activation_offload": (llama, host_bytes, more),
    "gradient_accumulation": (llama, rows_and_weights, same_step_in_rows),
    "flat_gradients": (llama, main_gradients, more),
    "optimizer_in_backward": (llama, gradients_after_backward, less),
    "eight_bit_states": (llama, state_bytes, less),
}


OF_LIBRARIES = "weight_quantization weight_offload kv_cache activation_offload gradient_accumulation eight_bit_states"
NO_WHOLE_STEP = {"gradient_accumulation+flat_gradients", "gradient_accumulation+optimizer_in_backward"}
"""They count passes, and the effect of the second is measured in one."""


def effect(name: str, part: str) -> tuple[Callable[[], Any], Callable[[Names], Any], Callable[[Any, Any], bool]]:
    make, measure, expected = EFFECTS[part]
    if name.startswith("library of "):
        make = {"llama": llama, "vae": autoencoder, "ltx_video": ltx}[name.split()[2].rstrip(":")]
        return (make, from_library, more) if part in OF_LIBRARIES.split() else (make, measure, expected)
    return autoencoder if "vae_" in name else make, measure, expected


def names_for(make: Callable[[], Any]) -> Names:
    """Return the names that the printed code expects from its reader."""
    model, labels, rows = make(), TOKENS.clone(), list[int]()
    labels[0, :12] = -100
    if make is llama:
        model.register_forward_pre_hook(
            lambda _, _args, given: rows.append(len(given.get("labels", ""))), with_kwargs=True
        )
    inputs = {"input_ids": TOKENS, "labels": labels} if make is llama else inputs_of(model)
    return {"model": model, "inputs": inputs, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "rows": rows}


def result_of(name: str, part: str, code: str, folder: Path) -> str:
    """Return the module that the code has taken the optimization from, or what is wrong with its effect."""
    for variable in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"):
        os.environ.pop(variable, None)
    make, measure, expected = effect(name, part)
    before, names = measure(names_for(make)), names_for(make)
    if "kv_cache" in name or "weight_offload" in name:
        names["model"].requires_grad_(False)  # they are for inference
    if "from_pretrained" in code:
        names["model"].save_pretrained(folder)
        names["model"].name_or_path = str(folder)
    sys.path.insert(0, str(folder))
    try:
        exec(compile(code, f"{name}, as printed", "exec"), names)
        after = measure(names)
    finally:
        sys.path.remove(str(folder))
        for undo in [names[each] for each in reversed(names) if each.startswith("undo")]:
            undo()
    if not expected(before, after) and name not in NO_WHOLE_STEP:
        return f"{before} before, {after} after"
    kinds = [kind for kind in names.values() if isinstance(kind, type) and kind.__module__.endswith(part)]
    return kinds[0].__module__ if kinds else ""


def main() -> None:
    torch.set_num_threads(1)
    given, folder = json.load(sys.stdin), Path(sys.argv[1])
    results = {}
    for name, code in given.items():
        try:
            parts = name.split(" with ")[0].split(": ")[-1].split("+")
            results[name] = " ".join(result_of(name, part, code, folder / name) for part in parts)
        except Exception:
            results[name] = traceback.format_exc()
    sys.stdout.write(json.dumps(results))


if __name__ == "__main__":
    main()
