"""A Trace that can be shared: the same numbers, without the folders of the machine that recorded it.

What goes: everything in a file name before the part that says what the file is. That part begins at
`site-packages`, `lib/python3.X` and the like, so that libraries stay libraries to everyone who reads the
stacks. Any other file keeps its own name, and as many of its folders as tell it from its namesakes; never a home
folder, nor a folder named as a user whose home folder appears in any path. The same holds for
paths that torch writes into `forward_frames`. Texts that nothing refers to any more are not in the result.

What stays, because only its author knows what it says: names of functions, `user_metadata`, names of
`record_function` ranges, compile contexts, module paths. A person's name in a project's folder can stay too,
where two files of one name need that folder.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from memviz.trace.intern import Interner
from memviz.trace.model import DeviceTrace, Holders, Ints4, Labels, Trace

_KEPT_FROM = re.compile(
    r"(?:^|/)((?:site-packages|dist-packages|lib/python3\.[0-9]+|Lib|pytorch/torch|torch|torch_compile_debug)/.*"
    r"|(?:bin|Scripts)/[^/]*)$",
    re.DOTALL,
)
"""Parts of a path that tell library code from user code. The first match is kept with the rest of the path, so that no
text is scanned twice."""
_COMPILED = re.compile(r"(?:^|/)torchinductor_[^/]*(/.*)$", re.DOTALL)
"""The folder of torch.compile has the user's name in its own."""
_HOME = re.compile(r"(?:^|/)(?:home|[Uu]sers|Documents and Settings)/([^/]+)(?=/)")
_ROOT = re.compile(r"^/root(?=/)")
_TRACEBACK_FILE = re.compile(r'(?<=File ")[^"\n]+(?=")')
_PATH_IN_TEXT = re.compile(r"""(?<![^\s"'=(\[])(?:[A-Za-z]:|~)?[\\/][^\s"'<>|:;,()]*""")
_MOST_FOLDERS = 8


def strip_paths(trace: Trace) -> Trace:
    strings = trace.strings
    files = {strings[code] for code in np.unique(trace.stacks.frames.filename).tolist()}
    names = {strings[code] for code in np.unique(trace.stacks.frames.name).tolist()}
    inside = {path for name in names for path in _TRACEBACK_FILE.findall(name)}
    short = short_paths(files | inside)

    interner = Interner()
    stacks = _stacks(trace, short, interner)
    texts = _kept_texts(trace, interner)
    facts = {key: _without_folders(text) for key, text in trace.about.facts.items()}
    about = replace(trace.about, source=_base_name(trace.about.source), facts=facts)
    devices = tuple(_device(device, stacks, texts) for device in trace.devices)
    frozen = interner.frozen_stacks()
    return replace(trace, devices=devices, stacks=frozen, strings=tuple(interner.strings), about=about)


def short_paths(paths: Iterable[str]) -> dict[str, str]:
    """Each path and what is kept of it. Different files of a person's own keep different names."""
    plain = {path: path.replace("\\", "/") for path in paths}
    people = {name.lower() for path in plain.values() for name in _HOME.findall(path)}
    short: dict[str, str] = {}
    own: dict[str, list[str]] = {}
    for path, slashed in plain.items():
        known = _recognised(_below_home(slashed), people)
        if known is not None:
            short[path] = known
        elif slashed.startswith("<"):
            short[path] = _without_folders(path)
        else:
            # The file's name and the folders above it that may be shown, outermost first.
            parts = [part for part in _below_home(slashed).split("/") if part not in ("", ".", "..")]
            private = [
                place
                for place, part in enumerate(parts[:-1])
                if part.lower() in people or part[0] == "~" or part[-1] == ":"
            ]
            own[path] = parts[max(private, default=-1) + 1 :] or ["?" if slashed else ""]
    return {**short, **_distinct_names(own, taken=set(short.values()))}


def _below_home(path: str) -> str:
    ends = [match.end() for pattern in (_HOME, _ROOT) for match in pattern.finditer(path)]
    return path[max(ends, default=0) :]


def _recognised(path: str, people: set[str]) -> str | None:
    compiled = _COMPILED.search(path)
    kept = _KEPT_FROM.search(path)
    if not compiled and not kept:
        return None
    rest = f"torchinductor_user{compiled[1]}" if compiled else kept[1] if kept else ""
    return "/".join("user" if part.lower() in people else part for part in rest.split("/"))


def _distinct_names(own: Mapping[str, list[str]], taken: set[str]) -> dict[str, str]:
    """Adds folders to names that are not alone, and numbers to those that even these do not tell apart."""
    depth = dict.fromkeys(own, 1)
    for _ in range(_MOST_FOLDERS):
        names = {path: "/".join(parts[-depth[path] :]) for path, parts in own.items()}
        seen = Counter(names.values())
        alike = [path for path, name in names.items() if seen[name] > 1 and len(own[path]) > depth[path]]
        if not alike:
            break
        for path in alike:
            depth[path] += 1
    numbered = {}
    used = set(taken)
    for path, parts in sorted(own.items()):
        name = stem = "/".join(parts[-depth[path] :])
        number = 1
        while name in used:
            number += 1
            name = f"{number}/{stem}"
        used.add(name)
        numbered[path] = name
    return numbered


def _stacks(trace: Trace, short: Mapping[str, str], interner: Interner) -> Ints4:
    """New number of each stack, with room for NO_STACK at the end. Stacks that now read alike become one."""
    strings, frames, numbers = trace.strings, trace.stacks.frames, []
    for name_code, file, line in zip(frames.name.tolist(), frames.filename.tolist(), frames.line.tolist(), strict=True):
        name = strings[name_code]
        if 'File "' in name:
            name = _TRACEBACK_FILE.sub(lambda match: short[match[0]], name)
        numbers.append(interner.frame({"name": name, "filename": short[strings[file]], "line": line}))
    stacks = (trace.stacks.of(i).tolist() for i in range(len(trace.stacks)))
    return np.array([*(interner.stack_of([numbers[k] for k in stack]) for stack in stacks), -1], dtype=np.int32)


def _kept_texts(trace: Trace, interner: Interner) -> Ints4:
    """New number of each text that anything but a frame refers to."""
    used = [device.annotations.name for device in trace.devices]
    used += [column for device in trace.devices for column in (device.events.context, device.events.metadata)]
    used += [label.module for device in trace.devices for label in device.labels]
    holders = [device.holders for device in trace.devices if device.holders is not None]
    texts = [column for rows in holders for column in (rows.owner, rows.chain, rows.place)]
    used += texts
    with_paths = {code for column in texts for code in np.unique(column).tolist()}
    table = np.zeros(len(trace.strings), dtype=np.int32)
    for code in np.unique(np.concatenate(used)).tolist():
        text = trace.strings[code]
        table[code] = interner.string(_without_folders(text) if code in with_paths else text)
    for name in trace.other_actions:
        interner.string(name)
    return table


def _device(device: DeviceTrace, stacks: Ints4, texts: Ints4) -> DeviceTrace:
    events, annotations, holders = device.events, device.annotations, device.holders

    def renumbered(rows: Holders) -> Holders:
        return replace(rows, owner=texts[rows.owner], chain=texts[rows.chain], place=texts[rows.place])

    def relabelled(labels: Labels | None) -> Labels | None:
        return None if labels is None else replace(labels, module=texts[labels.module])

    return replace(
        device,
        events=replace(
            events,
            stack=stacks[events.stack],
            forward_stack=stacks[events.forward_stack],
            context=texts[events.context],
            metadata=texts[events.metadata],
        ),
        segments=replace(device.segments, stack=stacks[device.segments.stack]),
        blocks=replace(device.blocks, stack=stacks[device.blocks.stack]),
        annotations=replace(annotations, name=texts[annotations.name]),
        event_labels=relabelled(device.event_labels),
        block_labels=relabelled(device.block_labels),
        holders=None if holders is None else renumbered(holders),
    )


def _without_folders(text: str) -> str:
    """Every path inside a text becomes its last part."""
    return _PATH_IN_TEXT.sub(lambda match: _base_name(match[0]), text)


def _base_name(path: str) -> str:
    return re.split(r"[\\/]", path.rstrip("\\/"))[-1]
