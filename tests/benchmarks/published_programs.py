"""Our versions of the programs behind the published figures, one JSON line of settings each.

It runs in a separate process, with the source's libraries ahead of ours on the path: each line of its input has the
program's name, GPU, torch release and settings; each line of its output the peaks, or the error.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

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
    name = config.pop("peft_type")
    chosen = {"target_modules": list(targets)} if targets else {}
    made = PEFT_TYPE_TO_CONFIG_MAPPING[name](**{**chosen, **config})
    if name == "ADAMSS":
        # It groups rows of the weights by their values; here all groups have nearly the same size.
        import_module("peft.tuners.adamss.layer").clustering_Z = lambda rows, count, _: (
            torch.arange(len(rows)) % count,
            count,
        )
    if name == "SHIRA":
        made.mask_fn = lambda layer, rank, **more: None
    model = get_peft_model(model, made, autocast_adapter_dtype=settings.get("casts", "yes") == "yes")
    if name == "SHIRA":
        # It draws random positions, whose number decides; here they are the first ones.
        for layer in (each for each in model.modules() if hasattr(each, "shira_indices")):
            places = torch.arange(len(layer.shira_weight["default"]), device="cuda", dtype=torch.int32)
            layer.shira_indices["default"] = torch.stack([places // layer.in_features, places % layer.in_features])
    return model


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
    if settings.get("prefix") == "text":
        from peft import initialize_kv_prefix_from_text

        initialize_kv_prefix_from_text(model, lambda *_, **more: {"input_ids": torch.zeros(1, 51).long()}, text="")
    alone = model.disable_adapter() if hasattr(model, "disable_adapter") else nullcontext()
    with alone, torch.inference_mode():
        # The loss before training. After it PEFT lets all of an adapter learn, what its optimizer had frozen, too.
        words = torch.zeros(4, 768, dtype=torch.int64).to("cuda")
        model(input_ids=words, attention_mask=torch.ones_like(words))
    for step, length in enumerate((300, 280, LONGEST)):
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
        _choose_ranks(model, step)
        if length == 280:
            torch.cuda.empty_cache()


def _choose_ranks(model: Any, step: int) -> None:
    """Let a method that changes its ranks during training do so, as halfway through the original's steps."""
    choose = getattr(getattr(model, "base_model", None), "update_and_allocate", None)
    if choose is not None:
        choose(getattr(model.active_peft_config, "total_step", 0) // 2 + step)


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
    for step, rows in enumerate(order[: 2 * _STEPS].split(2)):
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
        _choose_ranks(model, step)
        losses.append(loss.detach())
    assert encoder.device.type == "cuda"


def _litgpt(settings: Settings) -> None:
    """Train or ask a model of litgpt, or of lit-gpt as it was called in 2023, by its own classes and Lightning's.

    The longest texts come again when gradients and states are there; among 50,000 texts they come once, at first.
    On several GPUs FSDP shards it, and every rank has the whole model while weights are loaded.
    """
    from lightning import Fabric
    from lightning.fabric.plugins import BitsandbytesPrecision
    from lightning.fabric.strategies import FSDPStrategy

    package = "litgpt" if find_spec("litgpt") else "lit_gpt"
    method, kind = settings["method"], settings.get("quantize")
    library = import_module(f"{package}.{method if method in ('lora', 'adapter', 'adapter_v2') else 'model'}")
    plugin = BitsandbytesPrecision(kind, torch.bfloat16) if kind else None
    if plugin:
        _keep_inputs_of_quantized_layers()
    gpus, blocks = int(settings.get("gpus", 1)), {library.Block}
    more = {"state_dict_type": "full", "limit_all_gathers": True, "cpu_offload": False}
    sharded = FSDPStrategy(auto_wrap_policy=blocks, activation_checkpointing_policy=blocks, **more)
    strategy = sharded if gpus > 1 else "auto"
    precision = None if plugin else "bf16-true"
    fabric = Fabric(accelerator="cuda", devices=gpus, strategy=strategy, plugins=plugin, precision=precision)
    fabric.launch()
    config = library.Config.from_name(settings["model"], **_lora_of_litgpt(package, settings))
    with fabric.init_module(empty_init=method == "generate" or gpus > 1):
        model: Any = library.GPT(config)
    if method == "generate":
        _generate_by_litgpt(fabric.setup_module(model.eval()))
        return
    if method != "full":
        getattr(library, f"mark_only_{method}_as_trainable")(model)
    sizes = {name: weight.shape for name, weight in model.named_parameters()}
    model = fabric.setup_module(model)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    if plugin:
        from bitsandbytes.optim import PagedAdamW

        optimizer: Any = PagedAdamW(weights)
    else:
        optimizer = torch.optim.AdamW(weights)
    optimizer = fabric.setup_optimizers(optimizer)
    if gpus > 1:
        from lightning.fabric.strategies.model_parallel import _load_raw_module_state

        loaded = {name: torch.zeros((), dtype=torch.bfloat16).expand(size) for name, size in sizes.items()}
        _load_raw_module_state(loaded, module=model._forward_module, world_size=gpus, strict=False)
    _train_by_litgpt(fabric, package, model, optimizer, settings)


def _lora_of_litgpt(package: str, settings: Settings) -> dict[str, Any]:
    if "rank" not in settings:
        return {}
    before, chosen = ("lora_", "lora_") if package == "litgpt" else ("", "to_")
    targets = ("query", "key", "value", "projection", "mlp", "head")
    wanted = targets if settings["targets"] == "all" else settings["targets"].split(",")
    return {
        f"{before}r": int(settings["rank"]),
        f"{before}alpha": 16,
        f"{before}dropout": 0.05,
        **{f"{chosen}{target}": target in wanted for target in targets},
    }


def _train_by_litgpt(fabric: Any, package: str, model: Any, optimizer: Any, settings: Settings) -> None:
    cross_entropy: Any = import_module(f"{package}.utils").chunked_cross_entropy
    batch, length = int(settings["batch"]), int(settings["length"])
    micro_batches = int(settings.get("micro-batches", 2))
    model.max_seq_length = length
    model.eval()
    with torch.no_grad():
        # Adapters of 2023 keep their first keys and values, which learn nothing where these are of a validation.
        words = torch.zeros(batch, length // 4, dtype=torch.int64).to("cuda")
        logits = model(words)
        cross_entropy(logits[..., :-1, :], words[..., 1:], chunk_size=0)
        del logits
    model.train()
    rest = [length // 4] * 3 if settings.get("longest") == "once" else [length] * 4
    for number, longest in enumerate([length, *rest]):
        words = torch.zeros(batch, longest, dtype=torch.int64).to("cuda")
        is_accumulating = (number + 1) % micro_batches != 0
        with fabric.no_backward_sync(model, enabled=is_accumulating):
            if settings["method"] == "full":
                logits = model(words)
                loss = cross_entropy(logits[..., :-1, :], words[..., 1:])
            else:
                logits = model(words, lm_head_chunk_size=128)
                logits[-1] = logits[-1][..., :-1, :]
                loss = cross_entropy(logits, words[..., 1:])
            fabric.backward(loss / micro_batches)
        if not is_accumulating:
            optimizer.step()
            optimizer.zero_grad()


def _generate_by_litgpt(model: Any) -> None:
    """Generate a few words of 50 with a cache of keys and values for all of them."""
    model.max_seq_length = 56
    with torch.device("cuda"), torch.inference_mode():
        torch.set_default_dtype(torch.bfloat16)
        model.set_kv_cache(batch_size=1)
        torch.set_default_dtype(torch.float32)
        words, places = torch.zeros(6, dtype=torch.int64), torch.arange(6)
        for _ in range(3):
            logits = model(words.view(1, -1), places)[0, -1] / 0.8
            most, _ = torch.topk(logits, 200)
            chances = torch.where(logits < most[[-1]], -float("inf"), logits).softmax(dim=-1)
            words, places = torch.multinomial(chances, num_samples=1), places[-1:] + 1


def _keep_inputs_of_quantized_layers() -> None:
    """Let 4-bit layers keep their inputs for backward, as bitsandbytes did up to 0.42."""
    from bitsandbytes.autograd._functions import MatMul4Bit

    forward = MatMul4Bit.forward

    def keeps(context: Any, inputs: Any, weights: Any, *others: Any) -> Any:
        outputs = forward(context, inputs, weights, *others)
        if any(context.needs_input_grad[:2]):
            context.tensors = (inputs, weights)
        return outputs

    if not hasattr(forward, "keeps_inputs"):
        keeps.keeps_inputs = True
        MatMul4Bit.forward = staticmethod(keeps)


def _checkpoints(settings: Settings) -> None:
    """Train a model of 3.4 billion parameters twice, its blocks checkpointed in groups, or nested by halves."""
    from tests.truth.language_model import Sizes
    from tests.truth.turned_halves_model import TurnedHalvesModel

    sizes = Sizes(batch=4, context=2048, width=2560, inner=10240, layers=32, heads=32)
    model = TurnedHalvesModel(sizes).to("cuda")
    words, targets = (torch.randint(0, sizes.vocabulary, (4, sizes.context), device="cuda") for _ in range(2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    blocks, group = list(model.blocks), settings["group"]

    def nested(x: Any, blocks: Sequence[nn.Module]) -> Any:
        if len(blocks) == 1:
            return blocks[0](x)
        half = len(blocks) // 2
        for part in (blocks[:half], blocks[half:]):
            x = checkpoint(nested, x, part, use_reentrant=False)
        return x

    def run_forward() -> Any:
        x = model.words(words)
        if group == "nested":
            x = nested(x, blocks)
        else:
            for first in range(0, len(blocks), int(group)):
                x = checkpoint(nn.Sequential(*blocks[first : first + int(group)]), x, use_reentrant=False)
        x = model.norm(x)
        return model.head(x)

    for _ in range(2):
        optimizer.zero_grad()
        torch.cuda.reset_peak_memory_stats()
        scores = run_forward()
        loss = nn.functional.cross_entropy(scores.float().reshape(-1, sizes.vocabulary), targets.reshape(-1))
        loss.backward()
        optimizer.step()
        del scores, loss


PROGRAMS: dict[str, Callable[[Settings], None]] = {
    "opt-350m": lambda settings: _language_model(_opt, settings),
    "pythia-410m": lambda settings: _language_model(_pythia, settings),
    "mlp": _mlp,
    "litgpt": _litgpt,
    "checkpoints": _checkpoints,
    "flux2-klein": _flux2_klein,
    "llama-3.2-3b": _llama_3b,
}


def predicted(program: str, card: str, release: str, settings: Settings) -> dict[str, Any]:
    """Programs whose source says which settings run out of memory are given the memory of the card."""
    major, minor = map(int, release.split("."))
    with PredictedDevice(card_named(card), release=(major, minor), limited=program == "litgpt") as device:
        try:
            PROGRAMS[program](settings)
        except torch.OutOfMemoryError:
            return {"runs_out": True}
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
