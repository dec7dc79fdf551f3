"""What our language models share: tokens in, the model's own loss out, attention without a look at the data."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from memviz.errors import UsageError
from memviz.runner.workloads.random_inputs import RandomInputs
from memviz.runner.workloads.workload import FromConfiguration

ATTENTION = "sdpa_without_mask"


class LanguageModel(FromConfiguration):
    """A causal language model of transformers."""

    batch: int
    sequence: int
    cache: bool
    seed: int

    @property
    @abstractmethod
    def vocabulary(self) -> int: ...

    def _check(self) -> None:
        if self.cache and self.training:
            raise UsageError(
                "cache keeps keys and values for the next token, and training asks for none; leave it off."
            )

    def inputs(self, device: torch.device, micro_batch: int = 0) -> dict[str, Any]:
        tokens = RandomInputs(device, self.seed, micro_batch).whole(self.vocabulary, self.batch, self.sequence)
        arguments: dict[str, Any] = {"input_ids": tokens, "use_cache": self.cache}
        return {**arguments, "labels": tokens} if self.training else arguments

    def loss(self, output: Any) -> Tensor:
        loss: Tensor = output.loss
        return loss

    def _weights(self, model: nn.Module) -> None:
        """Left as transformers drew them: its scale fits each width, and tied matrices have two roles."""


def attention_name() -> str:
    """The name, known to transformers from now on, of its own SDPA attention without the mask made before it.

    For a whole sequence without padding transformers makes no mask either: SDPA is told that it is causal. But it finds
    that out by looking whether the positions restart somewhere, and tensors without data cannot be looked at. For an
    attention that it has no mask for, it does not look.
    """
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    AttentionInterface.register(ATTENTION, sdpa_attention_forward)
    return ATTENTION


def finished(model: Any) -> nn.Module:
    """Ties the head to the embeddings also on meta, where early releases of transformers 5 do not.

    And names the loss that transformers falls back to anyway, without its warning for classes that it does not know.
    """
    model.tie_weights()
    model.loss_type = "ForCausalLM"
    made: nn.Module = model
    return made
