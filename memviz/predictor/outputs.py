"""Files that a predicted program writes, in a folder of their own.

The program computes no values, so a checkpoint that it leaves could be taken for a real one by the next run. What it
writes as /home/me/run/model.pt goes to FOLDER/home/me/run/model.pt, its twin, and Python's functions of files look
there first. A file of the user that the program removes, renames or overwrites stays, and is hidden from it. Caches and
temporary folders are written as ever, but for tensors without values.

Folders are made in their real place as well, where code in C finds them, and are removed at the end; what such code
left in them moves to the twin. Without `everything` (a block within the user's own process) only tensors without values
are kept apart.

Processes that the program starts load this module first, so it needs nothing but Python.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import lru_cache, partial, update_wrapper
from pathlib import Path
from types import FrameType
from typing import Any

FOLDERS = "MEMVIZ_PREDICTED_OUTPUTS"
"""Variable with the folder, and the folders whose files are kept apart in any place; set for child processes."""
_BOOKS = ".memviz"
_READ = ("stat", "lstat", "access", "readlink", "statvfs", "getxattr")
_CHANGE = ("truncate", "chmod", "chown", "lchown", "utime", "setxattr", "removexattr")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_DOWNLOADS = (
    *("torch.hub", "torchvision.datasets", "torchaudio.datasets", "torch_geometric.data", "torch_geometric.datasets"),
    *("huggingface_hub", "datasets", "urllib.request", "gdown", "kagglehub", "nltk.downloader", "wget"),
)
"""Modules whose files are downloads, with their values, that a later run can use."""


class OutputFolder(AbstractContextManager["OutputFolder"]):
    def __init__(self, folder: str | os.PathLike[str], own: tuple[str, ...] = (), *, everything: bool = True) -> None:
        """`own`: folders whose files are kept apart although they are in a temporary folder or a cache."""
        self.folder = os.path.realpath(folder)
        self.own = own
        self._everything = everything
        self._own = tuple(map(_folder_prefix, own))
        self._shared = (_folder_prefix(self.folder), *_shared_prefixes())
        self._inside = _Inside()
        self._patches = ExitStack()
        self._real_folder = lru_cache(1 << 12)(os.path.realpath)

    def __enter__(self) -> OutputFolder:
        os.makedirs(os.path.join(self.folder, _BOOKS), exist_ok=True)
        self.follow()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> int:
        """Give Python its functions back, and return how many files there are, of earlier runs as well."""
        if self in _in_use:
            _in_use.remove(self)
            self._patches.close()
            self._remove_folders()
        return sum(len(files) for folder, _, files in os.walk(self.folder) if _BOOKS not in Path(folder).parts)

    def twin(self, path: Any) -> str:
        """Return the place of a file in the folder, whether it is there or not."""
        return self.folder + os.path.splitdrive(self._full(path))[1]

    def kept_copy(self, path: Any) -> str | None:
        """Return the twin of a file that is read; None where the real one counts."""
        with self._inside:
            twin = self.twin(path)
            return twin if os.path.lexists(twin) or self._is_hidden(path) else None

    def path_to_read(self, path: Any) -> str:
        return self.kept_copy(path) or self._full(path)

    def path_to_write(self, path: Any, *, copy: bool = True, always: bool = False) -> str | None:
        """Return the twin of a file that is written, at first with what the real one has; None to write that one."""
        with self._inside:
            full, twin = self._full(path), self.twin(path)
            is_new = not os.path.lexists(twin)
            is_other = os.path.exists(full) and not os.path.isfile(full) and not os.path.isdir(full)
            # A pipe or a device is no file that could be copied.
            if is_new and (is_other or not always and not self._keeps(full)):
                return None
            if not os.path.isdir(self.path_to_read(os.path.dirname(full))):
                return None
            os.makedirs(os.path.dirname(twin), exist_ok=True)
            if is_new and copy and os.path.exists(self.path_to_read(full)):
                if os.path.isdir(full):
                    os.makedirs(twin)
                else:
                    copy_with_holes(full, twin)
                    shutil.copystat(full, twin)
            self._show(full)
            return twin

    @contextmanager
    def real(self, path: Any) -> Iterator[None]:
        """Write a file of memviz's in its real place, where it stays."""
        with self._inside:
            self._append_to_list("real", self._full(path))
            yield

    def as_variable(self) -> str:
        return os.pathsep.join((self.folder, *self.own))

    # Which files, and what is remembered of them.

    def _full(self, path: Any) -> str:
        folder, name = os.path.split(os.path.abspath(os.fsdecode(path)))
        return os.path.join(self._real_folder(folder), name)

    def _keeps(self, full: str) -> bool:
        if not self._everything:
            return False
        own, shared = (max((len(one) for one in prefixes if f"{full}{os.sep}".startswith(one)), default=0)
                       for prefixes in ((os.sep, *self._own), self._shared))  # fmt: skip
        if own <= shared:
            return False
        if not _is_download():
            return True
        self._append_to_list("real", full)
        return False

    def _append_to_list(self, book: str, full: str) -> None:
        with open(os.path.join(self.folder, _BOOKS, book), "a", encoding="utf-8") as file:
            file.write(f"{full}\n")

    def _read_list(self, book: str) -> list[str]:
        path = Path(self.folder, _BOOKS, book)
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    def _hidden_marker(self, full: str) -> str:
        return f"{self.folder}{os.sep}{_BOOKS}{os.sep}hidden{full}"

    def _is_hidden(self, path: Any) -> bool:
        return os.path.lexists(f"{self._hidden_marker(self._full(path))}.hidden")

    def _hide(self, full: str) -> None:
        os.makedirs(os.path.dirname(self._hidden_marker(full)), exist_ok=True)
        Path(f"{self._hidden_marker(full)}.hidden").touch()

    def _show(self, full: str) -> None:
        with suppress(FileNotFoundError):
            os.remove(f"{self._hidden_marker(full)}.hidden")

    def _make_real(self, full: str) -> None:
        if not os.path.isdir(full) and os.path.isdir(self.twin(full)):
            self._make_real(os.path.dirname(full))
            os.mkdir(full)
            self._append_to_list("folders", full)

    def _remove_folders(self) -> None:
        """Remove the folders that the program made, when what code in C wrote there has moved."""
        stays = self._read_list("real")
        for folder in reversed(self._read_list("folders")):
            twin = self.twin(folder)
            if not os.path.isdir(folder) or not (self._everything or os.path.isdir(twin)):
                continue
            os.makedirs(twin, exist_ok=True)
            for name in os.listdir(folder) if self._everything else ():
                path = os.path.join(folder, name)
                if not any(_folder_prefix(one).startswith(_folder_prefix(path)) for one in stays):
                    if not os.path.lexists(os.path.join(twin, name)) and not self._is_hidden(path):
                        shutil.move(path, os.path.join(twin, name))
                    elif not os.path.isdir(path):
                        os.remove(path)
            with suppress(OSError):
                os.rmdir(folder)
        try:
            os.getcwd()
        except FileNotFoundError:
            # The program ended in a folder that it made.
            os.chdir(self.own[0])
        for book in ("real", "folders"):
            with suppress(FileNotFoundError):
                os.remove(os.path.join(self.folder, _BOOKS, book))

    # Python's functions.

    def follow(self) -> None:
        """Put functions that look into the folder in the place of Python's own."""
        handlers = {
            **dict.fromkeys(_READ, partial(self._with_twin, self.kept_copy)),
            **dict.fromkeys(_CHANGE, partial(self._with_twin, self.path_to_write)),
            **dict.fromkeys(("rename", "replace"), self._rename),
            **dict.fromkeys(("remove", "unlink"), partial(self._call_unless_done, self._remove_file)),
            "listxattr": lambda function, path=".", **more: self._with_twin(self.kept_copy, function, path, **more),
            "listdir": self._listdir,
            "scandir": self._scandir,
            "mkdir": self._mkdir,
            "rmdir": partial(self._call_unless_done, self._remove_folder),
            "open": self._os_open,
            "chdir": self._chdir,
            "link": self._link,
            "symlink": self._symlink,
        }
        for name, handler in handlers.items():
            if hasattr(os, name):
                self._put(os, name, _Function(getattr(os, name), handler))
        opened = _Function(builtins.open, self._open)
        for owner in (builtins, io):
            self._put(owner, "open", opened)
        for module, name in (("tarfile", "bltn_open"), ("bz2", "_builtin_open")):
            if module in sys.modules:
                self._put(sys.modules[module], name, opened)
        self._put(shutil, "copyfile", _Function(shutil.copyfile, self._copyfile))
        # By descriptors of folders it would remove the real files.
        self._put(shutil, "_use_fd_functions", False)
        _in_use.append(self)

    def _put(self, owner: Any, name: str, value: Any) -> None:
        self._patches.callback(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, value)

    def _with_real_functions(self, question: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Ask with Python's own functions. None for what is no path, and within a question."""
        paths = [path for path in args if isinstance(path, str | bytes | os.PathLike) and os.fspath(path)]
        if self._inside.depth or len(paths) < len(args):
            return None
        with self._inside, suppress(ValueError):
            # A path with a zero byte is refused by the function itself.
            return question(*args, **kwargs)
        return None

    def _with_twin(self, twin: Callable[..., str | None], function: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        used = self._with_real_functions(twin, path) if kwargs.get("dir_fd") is None else None
        return _call_with_path(function, path, used, *args, **kwargs)

    def _path_to_open(self, path: Any, *, reads: bool, copies: bool, is_new: bool) -> str | None:
        if reads:
            return self.kept_copy(path)
        if is_new and os.path.lexists(self.path_to_read(path)):
            raise _os_error(errno.EEXIST, path)
        return self.path_to_write(path, copy=copies)

    def _open(self, function: Any, file: Any, mode: Any = "r", *args: Any, **kwargs: Any) -> Any:
        way = {"reads": not set(mode) & set("wax+"), "copies": "w" not in mode, "is_new": "x" in mode}
        used = self._with_real_functions(partial(self._path_to_open, **way), file)
        if used is None:
            return function(file, mode, *args, **kwargs)
        opener = kwargs.pop("opener", None) or (lambda path, flags: os.open(path, flags, 0o666))

        def open_used(_: Any, **more: Any) -> Any:
            # The file keeps the name that the program gave it.
            return function(file, mode, *args, opener=lambda path, flags: opener(used, flags), **more)

        return _call_with_path(open_used, file, used, **kwargs)

    def _os_open(self, function: Any, path: Any, flags: int, *args: Any, **kwargs: Any) -> Any:
        is_new = flags & os.O_CREAT and flags & os.O_EXCL
        way = {"reads": not flags & _WRITES, "copies": not flags & os.O_TRUNC, "is_new": bool(is_new)}
        is_own = kwargs.get("dir_fd") is not None or flags & getattr(os, "O_DIRECTORY", 0)
        used = None if is_own else self._with_real_functions(partial(self._path_to_open, **way), path)
        return _call_with_path(function, path, used, flags, *args, **kwargs)

    def _copyfile(self, function: Any, src: Any, dst: Any, **kwargs: Any) -> Any:
        """Copy large files of the folder without their empty parts; a copy stays in it."""

        def copied(src: Any, dst: Any) -> bool:
            source = self.kept_copy(src)
            if source is None or not os.path.isfile(source) or os.path.islink(source):
                return False
            target = None if os.path.isdir(self.path_to_read(dst)) else self.path_to_write(dst, copy=False, always=True)
            if target is None or os.path.realpath(source) == os.path.realpath(target):
                return False
            copy_with_holes(source, target)
            return True

        return dst if self._with_real_functions(copied, src, dst) else function(src, dst, **kwargs)

    def _listdir(self, function: Any, path: Any = ".") -> Any:
        real, twins = self._with_real_functions(self._list_names, path or ".") or (None, ())
        if real is None:
            return function(path)
        names = [*real, *(name for name in twins if name not in set(real))]
        return list(map(os.fsencode, names)) if isinstance(path, bytes) else names

    def _list_names(self, path: Any) -> tuple[list[str], list[str]] | None:
        """Return the names of a folder in its real place and in the twin; None where all are real."""
        full, twin = self._full(path), self.twin(path)
        if not os.path.isdir(twin) and not os.path.isdir(self._hidden_marker(full)):
            return None
        real = os.listdir(full) if os.path.isdir(full) and not self._is_hidden(full) else []
        twins = os.listdir(twin) if os.path.isdir(twin) else []
        return [name for name in real if not self._is_hidden(os.path.join(full, name))], twins

    def _scandir(self, function: Any, path: Any = ".") -> Any:
        real, twins = self._with_real_functions(self._list_names, path or ".") or (None, ())
        if real is None or isinstance(path, bytes):
            return function(path)
        return _Entries(self._entries(function, path, set(real), twins))

    def _entries(self, function: Any, path: Any, real: set[str], twins: Any) -> Iterator[Any]:
        if real - set(twins):
            with function(path) as entries:
                yield from (entry for entry in entries if entry.name in real and entry.name not in twins)
        if twins:
            with function(self.twin(path)) as entries:
                yield from (_Entry(entry, os.path.join(path, entry.name)) for entry in entries)

    def _mkdir(self, function: Any, path: Any, mode: int = 0o777, **kwargs: Any) -> Any:
        if kwargs.get("dir_fd") is not None or not self._with_real_functions(
            partial(self._make_folder, mode=mode), path
        ):
            return function(path, mode, **kwargs)
        return None

    def _make_folder(self, path: Any, mode: int) -> bool:
        full, twin = self._full(path), self.twin(path)
        if os.path.lexists(self.path_to_read(full)):
            self._make_real(full)
            raise _os_error(errno.EEXIST, path)
        keeps = self._keeps(full)
        self._make_real(os.path.dirname(full))
        if not os.path.lexists(full):
            try:
                os.mkdir(full, mode)
            except OSError as error:
                error.filename = path
                raise
            if keeps or not self._everything:
                self._append_to_list("folders", full)
        if keeps:
            os.makedirs(twin)
        self._show(full)
        return True

    def _call_unless_done(self, done: Callable[..., bool], function: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("dir_fd") is not None or not self._with_real_functions(done, path):
            return function(path, *args, **kwargs)
        return None

    def _remove_folder(self, path: Any) -> bool:
        full, twin = self._full(path), self.twin(path)
        has_twin, keeps = os.path.isdir(twin), self._keeps(full)
        if not has_twin and not keeps or not os.path.isdir(self.path_to_read(full)):
            return False
        if any(self._list_names(full) or ([os.listdir(full)], [])):
            raise _os_error(errno.ENOTEMPTY, path)
        if has_twin:
            os.rmdir(twin)
        if os.path.isdir(full):
            if not keeps or full in self._read_list("folders"):
                with suppress(OSError):
                    os.rmdir(full)
            if os.path.isdir(full):
                self._hide(full)
        return True

    def _remove_file(self, path: Any) -> bool:
        full, twin = self._full(path), self.twin(path)
        has_twin = os.path.lexists(twin)
        if not has_twin and not self._keeps(full) and not self._is_hidden(full):
            return False
        if not os.path.lexists(self.path_to_read(full)):
            raise _os_error(errno.ENOENT, path)
        if os.path.isdir(self.path_to_read(full)) and not os.path.islink(self.path_to_read(full)):
            raise _os_error(errno.EISDIR, path)
        if has_twin:
            os.remove(twin)
        if os.path.lexists(full):
            self._hide(full)
        return True

    def _rename(self, function: Any, src: Any, dst: Any, **kwargs: Any) -> Any:
        action = (
            None
            if any(one is not None for one in kwargs.values())
            else self._with_real_functions(self._moved, src, dst)
        )
        if action is None:
            return function(src, dst, **kwargs)
        # A folder of the user's is copied with the functions that the program has, which keep it.
        return action()

    def _moved(self, src: Any, dst: Any) -> Callable[[], None] | None:
        old, new, twin = self._full(src), self._full(dst), self.twin(src)
        source, new_twin = self.path_to_read(old), self.twin(dst)
        keeps_old, keeps_new = self._keeps(old), self._keeps(new)
        if not (os.path.lexists(twin) or keeps_old or keeps_new or self._is_hidden(old)):
            if os.path.isfile(new_twin):
                os.remove(new_twin)
            return None
        if not os.path.lexists(source) or not os.path.isdir(self.path_to_read(os.path.dirname(new))):
            raise _os_error(errno.ENOENT, src, None, dst)
        os.makedirs(os.path.dirname(new_twin), exist_ok=True)
        if os.path.isdir(source) and not os.path.islink(source):
            return self._folder_moved(src, dst, old, new)
        if os.path.isdir(self.path_to_read(new)):
            raise _os_error(errno.EISDIR, src, None, dst)
        if source == twin:
            os.replace(twin, new_twin)
        elif old != new:
            copy_with_holes(old, new_twin)
        if os.path.lexists(old) and old != new:
            if source == twin or keeps_old:
                self._hide(old)
            else:
                os.remove(old)
        self._show(new)
        return lambda: None

    def _folder_moved(self, src: Any, dst: Any, old: str, new: str) -> Callable[[], None]:
        folders = self._read_list("folders")
        if os.path.isdir(old) and old not in folders and self._keeps(old):

            def copy() -> None:
                shutil.copytree(src, dst, symlinks=True, dirs_exist_ok=True)
                shutil.rmtree(src)

            return copy
        if os.path.isdir(old):
            os.rename(old, new)
        if os.path.isdir(self.twin(old)):
            os.rename(self.twin(old), self.twin(new))
        with open(os.path.join(self.folder, _BOOKS, "folders"), "w", encoding="utf-8") as file:
            prefix = _folder_prefix(old)
            moved = (f"{new}{one[len(old) :]}" if _folder_prefix(one).startswith(prefix) else one for one in folders)
            file.writelines(f"{one}\n" for one in moved)
        self._show(new)
        return lambda: None

    def _chdir(self, function: Any, path: Any) -> Any:
        self._with_real_functions(lambda path: self._make_real(self._full(path)), path)
        return function(path)

    def _link(self, function: Any, src: Any, dst: Any, **kwargs: Any) -> Any:
        if not any(self._with_real_functions(*each) for each in ((self.kept_copy, src), (self.path_to_write, dst))):
            return function(src, dst, **kwargs)
        shutil.copyfile(src, dst)
        return None

    def _symlink(self, function: Any, src: Any, dst: Any, *args: Any, **kwargs: Any) -> Any:
        def twin_of_target(dst: Any) -> str:
            full = os.path.join(os.path.dirname(self._full(dst)), os.fsdecode(src))
            return self.path_to_read(full) if os.path.lexists(self.path_to_read(full)) else self.twin(full)

        used = self._with_real_functions(partial(self._path_to_open, reads=False, copies=False, is_new=True), dst)
        if used is None:
            return function(src, dst, *args, **kwargs)
        return function(self._with_real_functions(twin_of_target, dst), used, *args, **kwargs)


@contextmanager
def output_folder(path: Path | None, *own: str) -> Iterator[OutputFolder]:
    """Keep a script's files apart in a folder, by default one that is removed."""
    with (
        tempfile.TemporaryDirectory(prefix="memviz-outputs-") as temporary,
        OutputFolder(path or temporary, (os.getcwd(), *own)) as outputs,
    ):
        yield outputs


class _Inside(threading.local):
    """Context in which a thread has Python's own functions."""

    depth = 0

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *_: object) -> None:
        self.depth -= 1


class _Function:
    """One of Python's functions, called through a handler; no descriptor, as it was none."""

    def __init__(self, function: Any, handler: Any) -> None:
        update_wrapper(self, function, updated=())
        self._function = function
        self._handler = handler

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._handler(self._function, *args, **kwargs)


class _Entry:
    """An entry of the folder for written files, under the path that the program uses."""

    def __init__(self, entry: Any, path: str) -> None:
        self._entry = entry
        self.path = path

    def __getattr__(self, name: str) -> Any:
        return getattr(self._entry, name)

    def __fspath__(self) -> str:
        return self.path


class _Entries:
    def __init__(self, entries: Iterator[Any]) -> None:
        self._entries = entries

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._entries)

    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._entries.close()  # type: ignore[attr-defined]


def _call_with_path(function: Any, path: Any, used: str | None, *args: Any, **kwargs: Any) -> Any:
    """Call a function with the twin of a path, and name the program's path in an error."""
    if used is None:
        return function(path, *args, **kwargs)
    try:
        return function(os.fsencode(used) if isinstance(path, bytes) else used, *args, **kwargs)
    except OSError as error:
        if error.filename in (used, os.fsencode(used)):
            error.filename = os.fspath(path)
        raise


def _os_error(number: int, *paths: Any) -> OSError:
    return OSError(number, os.strerror(number), *paths)


def copy_with_holes(source: str, target: Any) -> None:
    """Copy a file to a path or an open file, with its holes: those of tensors without values."""
    with ExitStack() as stack:
        file = stack.enter_context(open(source, "rb"))
        into = target if hasattr(target, "write") else stack.enter_context(open(target, "wb"))
        begin, at, size = into.tell(), 0, os.fstat(file.fileno()).st_size
        while at < size:
            end = size
            if hasattr(os, "SEEK_DATA"):
                try:
                    at = os.lseek(file.fileno(), at, os.SEEK_DATA)
                except OSError:
                    break
                end = os.lseek(file.fileno(), at, os.SEEK_HOLE)
            file.seek(at)
            into.seek(begin + at)
            while at < end and (part := file.read(min(end - at, 1 << 20))):
                into.write(part)
                at += len(part)
        into.seek(begin + size)
        into.truncate()


def _folder_prefix(path: str) -> str:
    return os.path.join(os.path.realpath(path), "")


def _shared_prefixes() -> Iterator[str]:
    """Yield the beginnings of paths that are written as ever: caches, temporary folders and Python's own."""
    named = {value for name, value in os.environ.items() if "CACHE" in name or name in ("HF_HOME", "TORCH_HOME")}
    folders = {"/tmp", "/var/tmp", "/dev", "/proc", "/sys", "/run", tempfile.gettempdir(), sys.prefix, *named}
    yield from map(_folder_prefix, filter(os.path.isabs, folders))
    # ~/.cache, ~/.config, ~/.triton
    yield f"{_folder_prefix(os.path.expanduser('~'))}."


def _is_download() -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if any(name == one or name.startswith(f"{one}.") for one in _DOWNLOADS):
            return True
        frame = frame.f_back
    return False


_in_use: list[OutputFolder] = []
"""One, while a program is predicted."""


def outputs_in_use() -> OutputFolder | None:
    return _in_use[-1] if _in_use else None


def real_file(path: Any) -> AbstractContextManager[None]:
    return _in_use[-1].real(path) if _in_use else nullcontext()


def follow_parent() -> None:
    """Write where the predicted program that started this process does."""
    folder, *own = os.environ[FOLDERS].split(os.pathsep)
    OutputFolder(folder, tuple(own)).follow()
