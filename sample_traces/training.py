"""The invented training script: batches, forward, backward, clipping and AdamW, step after step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from memviz.trace.model import Category, Phase
from sample_traces.recorder import Recorder
from sample_traces.transformer import FLOAT, TORCH, Model, Saved, Shape, backward, build, forward

ADAM = TORCH + "optim/adam.py"


@contextmanager
def _optimizer_frames(run: Recorder, line: int) -> Iterator[None]:
    with (
        run.frame("wrapper", TORCH + "optim/optimizer.py", 526),
        run.frame("_use_grad", TORCH + "optim/optimizer.py", 81),
        run.frame("step", ADAM, line),
    ):
        yield


def optimizer_step(model: Model) -> None:
    """AdamW over lists of tensors: the state in the first step, and one list of roots in every step."""
    run = model.run
    with run.phase(Phase.STEP), run.annotation("Optimizer.step#AdamW.step"):
        with _optimizer_frames(run, 233), run.frame("_init_group", ADAM, 184):
            for name, weight in model.weights.items():
                if name not in model.states:
                    with run.module(name.rpartition(".")[0]):
                        first, second = (
                            run.tensor(weight.size, "zeros_like", Category.OPTIMIZER_STATE) for _ in range(2)
                        )
                    model.states[name] = (first, second)
        with _optimizer_frames(run, 247), run.frame("adam", ADAM, 949), run.frame("_multi_tensor_adam", ADAM, 728):
            roots = [run.tensor(each.size, "_foreach_sqrt", Category.TEMPORARY) for each in model.weights.values()]
        with _optimizer_frames(run, 247), run.frame("adam", ADAM, 949):
            roots.clear()


def clip_gradients(model: Model) -> None:
    run, path = model.run, TORCH + "nn/utils/clip_grad.py"
    with run.phase(Phase.STEP), run.frame("clip_grad_norm_", path, 217):
        with run.frame("_get_total_norm", path, 95):
            norms = [run.tensor(FLOAT, "_foreach_norm", Category.TEMPORARY) for _ in model.gradients]
            stacked = run.tensor(FLOAT * len(norms), "stack", Category.TEMPORARY)
            total = run.tensor(FLOAT, "linalg_vector_norm", Category.TEMPORARY)
            del stacked
            norms.clear()
        with run.frame("_clip_grads_with_norm_", path, 171):
            coefficient = run.tensor(FLOAT, "reciprocal", Category.TEMPORARY)
            del coefficient, total


def train(run: Recorder, shapes: Sequence[Shape], *, checkpointed: bool = False) -> None:
    """The whole script: the model, then one step per shape. It keeps the last step's logits, as scripts do."""
    with run.frame("<module>", "train.py", 58):
        model = build(run, shapes[0], checkpointed=checkpointed)
        logits = loss = tokens = targets = None
        for number, shape in enumerate(shapes):
            model.shape = shape
            with run.annotation(f"ProfilerStep#{number}"):
                with run.frame("main", "train.py", 38), run.annotation("Optimizer.zero_grad#AdamW.zero_grad"):
                    model.gradients.clear()
                with run.frame("main", "train.py", 39), run.frame("next_batch", "train.py", 17):
                    size = shape.rows * 8
                    tokens, targets = (run.tensor(size, "_to_copy", Category.INPUT) for _ in range(2))
                graph: list[Saved] = []
                with run.frame("main", "train.py", 40):
                    logits, loss = forward(model, tokens, targets, graph)
                with run.frame("main", "train.py", 41):
                    backward(model, graph)
                with run.frame("main", "train.py", 42):
                    clip_gradients(model)
                with run.frame("main", "train.py", 43):
                    optimizer_step(model)
                run.wait()
        run.finish()
