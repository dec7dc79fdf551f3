"""Our versions of the programs behind the published figures, one JSON line of settings each.

It runs in a separate process, with the source's libraries ahead of ours on the path: each line of its input has the
program's name, GPU, torch release and settings; each line of its output the peaks, or the error.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
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
LONGEST = 738
"""Tokens of the longest four texts that PEFT's comparison trains a language model with, by its peak with LoRA."""
_STEPS = 4
"""Training steps; from the second on each takes the same."""


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


_LINEAR = (
    *("add_k_proj", "add_q_proj", "add_v_proj", "linear_in", "linear_out", "to_add_out"),
    *("to_k", "to_out.0", "to_q", "to_qkv_mlp_proj", "to_v"),
)


def _with_adapter(model: Any, settings: Settings, targets: Sequence[str] | None) -> Any:
    """Wrap the model by PEFT as the settings say; without a configuration it is trained whole."""
    from peft import get_peft_model
    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING

    config = json.loads(settings["config"])
    if not config:
        return model
    kind = PEFT_TYPE_TO_CONFIG_MAPPING[config.pop("peft_type")]
    chosen = {"target_modules": list(targets)} if targets else {}
    casts = settings.get("casts", "yes") == "yes"
    return get_peft_model(model, kind(**{**chosen, **config}), autocast_adapter_dtype=casts)


def _llama_3b(settings: Settings) -> None:
    """Train Llama 3.2 3B by a method of PEFT, or whole, four texts a step.

    Before the longest texts everything cached is given back, as the original does every ten steps. How long they
    are is not published: `LONGEST` is fitted to the peak of LoRA of rank 32, and is the same for all methods.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    rope = {
        "rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
    }  # fmt: skip
    config = LlamaConfig(
        vocab_size=128256, hidden_size=3072, intermediate_size=8192, num_hidden_layers=28, num_attention_heads=24,
        num_key_value_heads=8, head_dim=128, max_position_embeddings=131072, rms_norm_eps=1e-5,
        tie_word_embeddings=True, rope_parameters=rope, dtype="bfloat16",
    )  # fmt: skip
    # transformers takes room for all weights at once before it loads them.
    torch.empty(3_212_749_824, dtype=torch.bfloat16, device="cuda")
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model: Any = LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    model = _with_adapter(model, settings, None).train()
    optimizer = _optimizer(model, settings.get("optimizer", "AdamW"))
    alone = model.disable_adapter() if hasattr(model, "disable_adapter") else nullcontext()
    with alone, torch.inference_mode():
        # The loss before training. After it PEFT lets all of an adapter learn, what its optimizer had frozen, too.
        words = torch.zeros(4, 768, dtype=torch.int64).to("cuda")
        model(input_ids=words, attention_mask=torch.ones_like(words))
    for length in (300, 280, LONGEST):
        words = torch.zeros(4, length, dtype=torch.int64).to("cuda")
        mask = torch.ones_like(words)
        labels = words.clone()
        for row in range(1, 4):
            labels[row, length - row :] = -100
        optimizer.zero_grad()
        outputs = model(input_ids=words, attention_mask=mask, labels=labels, num_items_in_batch=4 * length)
        loss = outputs.loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if length == 280:
            torch.cuda.empty_cache()


def _optimizer(model: Any, kind: str) -> torch.optim.Optimizer:
    if kind == "lora-fa":
        from peft.optimizers import create_lorafa_optimizer

        return create_lorafa_optimizer(model=model, r=32, lora_alpha=64, lr=1e-4)
    if kind == "riemannian":
        from peft.optimizers import create_riemannian_optimizer

        return create_riemannian_optimizer(model, optimizer_cls=torch.optim.AdamW, lr=1e-4)
    return torch.optim.AdamW(model.parameters(), lr=1e-4)


def _flux2_klein(settings: Settings) -> None:
    """Train the transformer of FLUX.2 klein 4B by a method of PEFT, or whole, with what else lay on that card.

    Images of 512 x 512, two a step, 14 in all; what text encoder and VAE made of them was computed before, and an
    encoder of images (DINOv2 base) waits for the evaluation. The peak is that of the steps.
    """
    from diffusers import Flux2KleinPipeline, Flux2Transformer2DModel
    from transformers import Dinov2Config, Dinov2Model

    with torch.device("cuda"):
        model: Any = Flux2Transformer2DModel(
            num_layers=5, num_single_layers=20, num_attention_heads=24, joint_attention_dim=7680, guidance_embeds=False
        ).to(torch.bfloat16)
    model.enable_gradient_checkpointing()
    model = _with_adapter(model, settings, _LINEAR)
    # Made on the card, and out of the way of the encoders.
    model.to("cpu").train()
    torch.cuda.empty_cache()
    order = torch.cat([torch.randperm(14, device="cuda") for _ in range(1000)])
    with torch.device("cuda"):
        encoder = Dinov2Model(Dinov2Config(image_size=518))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    of_type = {"device": "cuda", "dtype": torch.bfloat16}
    texts = torch.cat([torch.empty(1, 512, 7680, **of_type) for _ in range(14)])
    text_ids = torch.cat([torch.zeros(1, 512, 4, dtype=torch.int64, device="cuda") for _ in range(14)])
    images = torch.cat([torch.empty(2, 128, 32, 32, **of_type) for _ in range(7)])
    model.to("cuda")
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    losses = []
    for rows in order[: 2 * _STEPS].split(2):
        clean, text, ids = images[rows], texts[rows], text_ids[rows]
        image_ids = Flux2KleinPipeline._prepare_latent_ids(clean).to("cuda")
        noise = torch.randn_like(clean)
        sigmas = torch.rand(2, 1, 1, 1).to(**of_type)
        packed = Flux2KleinPipeline._pack_latents((1 - sigmas) * clean + sigmas * noise)
        optimizer.zero_grad()
        outputs = model(packed, text, sigmas.flatten(), image_ids, ids, None, return_dict=False)[0]
        found = Flux2KleinPipeline._unpack_latents_with_ids(outputs, image_ids)
        loss = (found.float() - (noise - clean).float()).square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach())
    assert encoder.device.type == "cuda"


PROGRAMS: dict[str, Callable[[Settings], None]] = {
    "opt-350m": lambda settings: _language_model(_opt, settings),
    "pythia-410m": lambda settings: _language_model(_pythia, settings),
    "mlp": _mlp,
    "flux2-klein": _flux2_klein,
    "llama-3.2-3b": _llama_3b,
}


def predicted(program: str, card: str, release: str, settings: Settings) -> dict[str, Any]:
    major, minor = map(int, release.split("."))
    with PredictedDevice(card_named(card), release=(major, minor)) as device:
        PROGRAMS[program](settings)
        return {
            "allocated": device.peak_allocated_bytes,
            "reserved": torch.cuda.max_memory_reserved(),
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
