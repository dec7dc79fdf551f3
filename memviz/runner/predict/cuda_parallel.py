"""`nn.DataParallel` on one card: what it hands out and gathers stays there."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from memviz.runner.predict.named_devices import NamedDevices
from memviz.runner.predict.stream_order import StreamOrder
from memviz.runner.predict.torch_patches import Patches


def follow_data_parallel(patches: Patches, order: StreamOrder, named: NamedDevices) -> None:
    def there(devices: Any) -> None:
        for device in devices:
            named.check(device)

    def scatter(tensor: Tensor, devices: Any, sizes: Any = None, dim: int = 0, streams: Any = None) -> list[Tensor]:
        """What comes from the host is copied on a stream of its own."""
        there(devices)
        if tensor.is_cuda:
            return [tensor]
        before, stream = order.current, streams[0] if streams else None
        if stream is not None:
            order.set_current(stream.lane)
        try:
            return [tensor.to("cuda", non_blocking=True)]
        finally:
            order.set_current(before)

    def broadcast(tensors: Any, devices: Any, buffer_size: int = 0) -> list[list[Tensor]]:
        there(devices)
        return [list(tensors) for _ in devices]

    def gather(tensors: Any, dim: int, destination: Any = None) -> Tensor:
        joined = torch.cat(list(tensors), dim)
        return joined.cpu() if destination == -1 else joined

    patches.put(torch._C, "_scatter", scatter)
    patches.put(torch._C, "_broadcast", lambda tensor, devices: broadcast([tensor], devices)[0])
    patches.put(torch._C, "_broadcast_coalesced", broadcast)
    patches.put(torch._C, "_gather", gather)
    from torch.nn.parallel import _functions

    patches.put(_functions, "_streams", None)
