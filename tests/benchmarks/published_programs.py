"""Our versions of the programs behind the published figures, one JSON line of settings each.

It runs in a separate process, with the source's libraries ahead of ours on the path: each line of its input has the
program's name, GPU, torch release and settings; each line of its output the peaks, or the error.
"""

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from memviz.predictor.cards import card_named
from memviz.predictor.device import PredictedDevice
from memviz.predictor.ledger import trains
from memviz.predictor.rules import families_of

Settings = Mapping[str, str]
_WARM, _COUNTED = 2, 1
_ROWS = 4096


def _language_model(make: Callable[[str], nn.Module], settings: Settings) -> None:
    """Run forward and backward of the summed logits; each step's outputs live until the next step's."""
    batch, sequence = int(settings["batch"]), int(settings["sequence"])
    model = make(settings["attention"]).to("cuda").train()
    words = torch.randint(0, 1000, (batch, sequence)).to("cuda")
    mask = torch.ones(batch, sequence, dtype=torch.int64).to("cuda")
    for step in range(_WARM + _COUNTED):
        if step == _WARM:
            torch.cuda.reset_peak_memory_stats()
        model.zero_grad()
        outputs = model(input_ids=words, attention_mask=mask)
        loss = outputs.logits.sum()
        loss.backward()


def _in_halves(kind: Any, config: Any, attention: str) -> nn.Module:
    """Build the model in fp16 like `from_pretrained`: computed buffers keep their dtype."""
    config._attn_implementation = attention
    made = kind._from_config(config, torch_dtype=torch.float16, attn_implementation=attention)
    assert isinstance(made, nn.Module)
    return made


def _opt(attention: str) -> nn.Module:
    from transformers import OPTConfig, OPTForCausalLM

    config = OPTConfig(
        vocab_size=50272, hidden_size=1024, ffn_dim=4096, num_hidden_layers=24, num_attention_heads=16,
        word_embed_proj_dim=512, do_layer_norm_before=False, max_position_embeddings=2048,
    )  # fmt: skip
    return _in_halves(OPTForCausalLM, config, attention)


def _pythia(attention: str) -> nn.Module:
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    config = GPTNeoXConfig(
        vocab_size=50304, hidden_size=1024, intermediate_size=4096, num_hidden_layers=24, num_attention_heads=16,
        max_position_embeddings=2048, rotary_pct=0.25,
    )  # fmt: skip
    return _in_halves(GPTNeoXForCausalLM, config, attention)


def _mlp(settings: Settings) -> None:
    """A stack of linear layers with Adam, after a summary that goes through it with two rows."""
    widths = _widths(int(settings["inputs"]), int(settings["outputs"]), int(settings["depth"]), settings["shape"])
    layers: list[nn.Module] = []
    for before, after in zip(widths, widths[1:], strict=False):
        layers += [nn.Linear(before, after), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(widths[-1], int(settings["outputs"]))).to("cuda")
    model(torch.rand(2, 1, widths[0], device="cuda"))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters())
    batch = int(settings["batch"])
    rest = [_ROWS % batch] if _ROWS % batch else []
    for _ in range(2):
        # Of batches of one size the second takes what every later one takes.
        for size in ([batch] * min(_ROWS // batch, 2)) + rest:
            inputs = torch.randn(size, widths[0]).to("cuda")
            labels = torch.randint(0, int(settings["outputs"]), (size,)).to("cuda")
            optimizer.zero_grad()
            outputs = model(inputs)
            loss = criterion(outputs, labels)
            loss.backward()
            optimizer.step()


def _widths(inputs: int, outputs: int, depth: int, shape: str) -> list[int]:
    """Return the width before each layer and after the last."""
    found = [inputs]
    step = (inputs - outputs) // depth
    for _ in range(depth + (shape == "bottleneck")):
        after = {"uniform": found[-1], "gradual": max(found[-1] - step, outputs)}
        found.append(after.get(shape, max(int(found[-1] * 0.5), outputs)))
    return found


PROGRAMS: dict[str, Callable[[Settings], None]] = {
    "opt-350m": lambda settings: _language_model(_opt, settings),
    "pythia-410m": lambda settings: _language_model(_pythia, settings),
    "mlp": _mlp,
}


def predicted(program: str, card: str, release: str, settings: Settings) -> dict[str, Any]:
    major, minor = map(int, release.split("."))
    with PredictedDevice(card_named(card), release=(major, minor)) as device:
        PROGRAMS[program](settings)
        return {
            "allocated": device.peak_allocated_bytes,
            "reserved": device.highest_reserved_bytes,
            "class": "training" if trains(device.finish()) else "inference",
            "families": sorted(families_of(device.recorder.operators)),
        }


def main() -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            found = predicted(asked["program"], asked["card"], asked["torch"], asked["settings"])
        except Exception as error:
            # A library that lacks a model is one answer among many, and the next question may have another.
            found = {"error": f"{type(error).__name__}: {error}"[:200]}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
