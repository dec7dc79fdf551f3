"""Peaks that others published, predicted: `python -m tests.benchmarks.published [--write] [SOURCE ...]`.

`published.tsv` has the figures, a line each. Each source is predicted as memviz ships, with the libraries that are
installed, and with the libraries that the original had, in a folder of their own (`--environments`), where pip puts
them the first time. `--write` puts the table into the README and what is predicted with the original's libraries into
the data that predictions are judged by.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

from memviz.predictor.accuracy import DATA, MEASURES
from tests.benchmarks.readme import README, write_table
from tests.truth.held_against import write, write_readme

ROOT = Path(__file__).parent.parent.parent
_FIGURES = Path(__file__).with_suffix(".tsv")
_ENVIRONMENTS = Path.home() / ".cache" / "memviz-published"
_UNITS = {"bytes": 1, "MB": 10**6, "MiB": 1 << 20, "GB": 10**9, "GiB": 1 << 30}
PUBLISHED = "published"
_HEAD = ("| source | points | with the original's libraries | as shipped |", "|---|---|---|---|")


@dataclass(frozen=True)
class Source:
    title: str
    address: str
    program: str
    card: str
    torch: str
    libraries: tuple[str, ...] = ()
    """Versions of libraries in the original; empty if it used torch alone."""
    figure: Literal["allocated", "reserved", "device"] = "allocated"
    """The quantity measured; that of the whole device has the context and more in it."""


_OF_446 = ("transformers==4.46.3", "tokenizers==0.20.3", "huggingface_hub==0.26.5")
_OF_443 = ("transformers==4.43.4", "tokenizers==0.19.1", "huggingface_hub==0.23.5")
_OF_440 = ("transformers==4.40.2", "tokenizers==0.19.1", "huggingface_hub==0.23.5")
_OF_513 = ("transformers==5.13.1", "tokenizers==0.22.2", "huggingface_hub==1.33.0")
_FOR_LITGPT = (
    *("lightning==2.5.5", "lightning_utilities==0.15.2", "torchmetrics==1.9.0", "bitsandbytes==0.49.0"),
    *("jsonargparse==4.53.0", "packaging==26.4"),
)
_LIT_GPT = "git+https://github.com/Lightning-AI/litgpt@0cc02afa"
_LITGPT = "github.com/Lightning-AI/litgpt/blob/26857050"
_FOR_PEFT = (
    *("diffusers==0.38.0", "accelerate==1.15.0", "psutil==7.2.2", "pyyaml==6.0.4", "scikit-learn==1.9.1"),
    *("scipy==1.17.1", "joblib==1.6.0", "threadpoolctl==3.8.0", "narwhals==2.29.0"),
)
_COMPARISON = "github.com/huggingface/peft/tree/5d602fd/method_comparison"
_PULLS = "github.com/huggingface/transformers/pull"
SOURCES = {
    "opt-350m": Source("OPT-350m, training", f"{_PULLS}/33298", "opt-350m", "L40S", "2.4", _OF_446),
    "pythia-410m": Source(
        "pythia-410m eager, training", f"{_PULLS}/31031", "pythia-410m", "RTX 3080 Ti Laptop GPU", "2.2", _OF_440
    ),
    "pythia-410m-sdpa": Source(
        "pythia-410m SDPA, training", f"{_PULLS}/31031", "pythia-410m", "RTX 3080 Ti Laptop GPU", "2.2", _OF_443
    ),
    "gpumemnet-mlp": Source(
        "GPUMemNet's MLPs, training",
        "github.com/itu-rad/GPUMemNet (data CC BY 4.0)",
        "mlp",
        "A100 40GB",
        "2.4",
        figure="device",
    ),
    "peft-flux2": Source(
        "FLUX.2 klein 4B, training by PEFT's methods",
        f"{_COMPARISON}/image-gen",
        "flux2-klein",
        "L40S",
        "2.12",
        ("peft==0.20.0", *_OF_513, *_FOR_PEFT),
        figure="reserved",
    ),
    "peft-llama": Source(
        "Llama 3.2 3B, training by PEFT's methods",
        f"{_COMPARISON}/MetaMathQA",
        "llama-3.2-3b",
        "L40S",
        "2.13",
        ("peft==0.20.0", *_OF_513, *_FOR_PEFT),
        figure="reserved",
    ),
    "checkpoints": Source(
        "3.4 billion parameters, training with blocks checkpointed",
        "github.com/LINYUNLinYun/CS336-assignment2-systems/blob/d7b9b89/cs336_systems/experiments.md",
        "checkpoints",
        "RTX PRO 6000 Blackwell",
        "2.11",
    ),
    "lit-gpt-2023": Source(
        "lit-gpt of October 2023, LoRA, QLoRA, adapters and generation",
        f"{_LITGPT}/tutorials/resource-tables.md",
        "litgpt",
        "A100 40GB",
        "2.1",
        (*_FOR_LITGPT, _LIT_GPT),
    ),
    "litgpt-april-2024": Source(
        "litgpt of April 2024, LoRA, QLoRA and full finetuning",
        f"{_LITGPT}/config_hub/finetune/README.md",
        "litgpt",
        "A10G",
        "2.3",
        ("litgpt==0.3.1", *_FOR_LITGPT),
    ),
    "litgpt-summer-2024": Source(
        "litgpt of July to September 2024, LoRA, QLoRA and full finetuning",
        f"{_LITGPT}/config_hub/finetune/README.md",
        "litgpt",
        "A10G",
        "2.4",
        ("litgpt==0.4.13", *_FOR_LITGPT),
    ),
}


@dataclass(frozen=True)
class Point:
    source: str
    settings: dict[str, str]
    measured: int | None
    """Bytes; None if it ran out of memory."""


@dataclass(frozen=True)
class Outcome:
    point: Point
    answer: dict[str, Any]

    @property
    def predicted(self) -> int | None:
        """Predicted bytes to compare: reserved, unless the source gives allocated ones."""
        figure = SOURCES[self.point.source].figure
        value: int | None = self.answer.get("allocated" if figure == "allocated" else "reserved")
        return value

    @property
    def is_fit_right(self) -> bool:
        """True if it ran out of memory in both or in neither."""
        return "error" not in self.answer and ("runs_out" in self.answer) == (self.point.measured is None)

    @property
    def percent(self) -> float:
        assert self.predicted is not None and self.point.measured is not None
        return 100 * (self.predicted - self.point.measured) / self.point.measured


def points() -> list[Point]:
    with _FIGURES.open(newline="") as file:
        return [
            Point(
                row["source"],
                dict(pair.split("=") for pair in row["settings"].split()),
                None if row["unit"] == "OOM" else round(float(row["measured"]) * _UNITS[row["unit"]]),
            )
            for row in csv.DictReader(file, delimiter="\t")
        ]


def predict(source: Source, wanted: Sequence[Point], libraries: Path | None) -> list[Outcome]:
    """Predict all points in one process, with these libraries ahead of the installed ones."""
    path = os.pathsep.join(map(str, filter(None, (libraries, ROOT))))
    asked = {"program": source.program, "card": source.card, "torch": source.torch}
    questions = ({**asked, **point.settings, "settings": point.settings} for point in wanted)
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.published_programs"],
        input="".join(f"{json.dumps(question)}\n" for question in questions),
        env={**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()[-len(wanted) :]]
    return [Outcome(point, answer) for point, answer in zip(wanted, answers, strict=True)]


def environment(libraries: Sequence[str], folder: Path) -> Path | None:
    """Install the libraries without torch; the prediction is given the torch release to follow."""
    if not libraries:
        return None
    # lit-gpt has no release, so its folder has the name of the first beside it.
    made = folder / "-".join(libraries[0].split("=="))
    if not made.exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(made), *libraries]
        subprocess.run(command, check=True)
    return made


def row(name: str, ours: Sequence[Outcome] | None, theirs: Sequence[Outcome]) -> str:
    source = SOURCES[name]
    shipped = "the same: torch alone" if ours is None else _errors(ours)
    cells = [f"{source.title} ({source.address})", str(len(theirs)), _errors(theirs), shipped]
    return f"| {' | '.join(cells)} |"


def _errors(outcomes: Sequence[Outcome]) -> str:
    known = [outcome for outcome in outcomes if outcome.predicted is not None and outcome.point.measured is not None]
    unknown = sum("error" in outcome.answer for outcome in outcomes)
    failed = f"; {unknown} not predicted" if unknown else ""
    if not known:
        error = str(outcomes[0].answer["error"])
        missing = error.removeprefix("ModuleNotFoundError: No module named ").split(".")[0].strip("'")
        return error.replace("|", "/") if missing == error else f"needs {missing}, which is not among the libraries"
    if any(outcome.point.measured is None for outcome in outcomes):
        failed = f"; OOM or not right in {sum(one.is_fit_right for one in outcomes)} of {len(outcomes)}{failed}"
    if SOURCES[known[0].point.source].figure == "device":
        beside = sorted(value for _, value in _beside(known))
        constant = median(beside)
        off = [abs(100 * (value - constant) * (1 << 20) / (one.point.measured or 1)) for one, value in _beside(known)]
        words = f"{beside[0]:,} to {beside[-1]:,} MiB beside it, a spread of {beside[-1] - beside[0]}"
        return f"{words}; with a constant of {constant:,.0f} median {median(off):.2f} %, worst {max(off):.1f} %{failed}"
    sizes = [abs(one.percent) for one in known]
    return f"median {median(sizes):.2f} %, worst {max(sizes):.2f} %{failed}"


def _beside(outcomes: Sequence[Outcome]) -> list[tuple[Outcome, int]]:
    return [(one, ((one.point.measured or 0) - (one.predicted or 0)) >> 20) for one in outcomes]


def each_model(outcomes: Sequence[Outcome]) -> str:
    """Return a table with a line for each model and method: published and predicted GB of its settings."""
    lines: dict[str, list[str]] = {}
    for one in outcomes:
        settings = one.point.settings
        measured = "OOM" if one.point.measured is None else f"{one.point.measured / 10**9:.2f}"
        predicted = "OOM" if one.predicted is None else f"{one.predicted / 10**9:.2f}"
        batch = f", batch {settings['batch']}" if settings.get("batch", "1") != "1" else ""
        line = lines.setdefault(f"{settings['model']}, {settings['method']}", [])
        line.append(f"{settings.get('quantize', 'bf16')}{batch}: {measured} / {predicted}")
    rows = [f"| {name} | {'; '.join(cells)} |" for name, cells in lines.items()]
    return "\n".join(["| model, method | published / predicted, GB |", "|---|---|", *rows])


def held(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Return the comparisons that the predictor ships, for points measured as allocated or reserved."""
    return [
        {
            "name": f"{one.point.source} {' '.join(f'{name}={value}' for name, value in one.point.settings.items())}",
            "source": "/".join(SOURCES[one.point.source].address.split("/")[1:3]),
            "card": SOURCES[one.point.source].card,
            "torch": one.point.settings.get("torch", SOURCES[one.point.source].torch),
            "class": one.answer["class"],
            "families": one.answer["families"],
            **dict.fromkeys(MEASURES),
            SOURCES[one.point.source].figure: [one.point.measured, one.predicted],
        }
        for one in outcomes
        if one.predicted is not None and one.point.measured and SOURCES[one.point.source].figure != "device"
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.published", description=__doc__.split("\n\n")[0])
    parser.add_argument("sources", nargs="*", metavar="SOURCE", help=", ".join(SOURCES))
    parser.add_argument("--environments", type=Path, default=_ENVIRONMENTS, metavar="FOLDER")
    parser.add_argument("--write", action="store_true", help="the table and the data; other sources' stay")
    args = parser.parse_args()
    for name in args.sources or SOURCES:
        source, wanted = SOURCES[name], [point for point in points() if point.source == name]
        theirs = predict(source, wanted, environment(source.libraries, args.environments))
        ours = predict(source, wanted, None) if source.libraries else None
        line = row(name, ours, theirs)
        print(line, flush=True)
        if args.write:
            _keep(name, line, held(theirs))
            if source.program == "litgpt":
                write_table(name, each_model(theirs))


def _keep(name: str, line: str, rows: list[dict[str, Any]]) -> None:
    """Save a source's row, in the order of the sources."""
    known = {**_lines(), SOURCES[name].title: line}
    lines = [known[source.title] for source in SOURCES.values() if source.title in known]
    write_table("published", "\n".join([*_HEAD, *lines]))
    others = [one for one in json.loads(DATA.read_text(encoding="utf-8")).get(PUBLISHED, []) if not _is_of(name, one)]
    order = list(SOURCES)
    write(PUBLISHED, sorted([*others, *rows], key=lambda one: order.index(one["name"].split()[0])))
    write_readme()


def _lines() -> dict[str, str]:
    """Return the rows of the README's table, by their source's title."""
    text = README.read_text(encoding="utf-8")
    table = text[text.index("<!-- published: begin -->") : text.index("<!-- published: end -->")]
    found = [line for line in table.splitlines() if line.startswith("| ")]
    return {line[2:].split(" (")[0]: line for line in found}


def _is_of(name: str, one: dict[str, Any]) -> bool:
    return bool(one["name"].split()[0] == name)


if __name__ == "__main__":
    main()
