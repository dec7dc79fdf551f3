"""Files of a predicted program, in a folder of their own: it sees what it wrote, and the user's files stay."""

from __future__ import annotations

import bz2
import glob
import io
import json
import logging
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from memviz.predictor.device import PredictedDevice
from memviz.predictor.outputs import OutputFolder, copy_with_holes
from tests.predictor.rows import A100
from tests.second_process import predict


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Working directory of a user, who finds it as it was."""
    folder = tmp_path / "user"
    (folder / "runs" / "1").mkdir(parents=True)
    (folder / "runs" / "1" / "model.pt").write_text("trained")
    (folder / "log.txt").write_text("first\n")
    monkeypatch.chdir(folder)
    before, folders = files_of(folder), {path for path in folder.rglob("*") if path.is_dir()}
    yield folder
    assert files_of(folder) == before
    assert {path for path in folder.rglob("*") if path.is_dir()} == folders


@pytest.fixture
def kept(tmp_path: Path, user: Path) -> Iterator[Path]:
    """Twin of the working directory."""
    with OutputFolder(tmp_path / "kept", (str(user),)) as outputs:
        yield Path(outputs.twin(user))
    assert Path.cwd() == user


def test_written_files_are_found_by_every_way_to_look(kept: Path) -> None:
    os.makedirs("out/deep")
    Path("out/deep/a.txt").write_text("a")
    with open("out/deep/a.txt", "a") as file:
        file.write("b")
        assert file.name == "out/deep/a.txt"
    np.save("out/x.npy", np.arange(3))
    with bz2.open("out/y.bz2", "wb") as packed:
        packed.write(b"y")
    assert Path("out/deep/a.txt").read_text() == "ab" and Path("out/deep/a.txt").stat().st_size == 2
    assert os.path.exists("out/x.npy") and np.load("out/x.npy").tolist() == [0, 1, 2]
    assert sorted(os.listdir("out")) == sorted(os.listdir(b"out".decode())) == ["deep", "x.npy", "y.bz2"]
    assert sorted(glob.glob("out/**/*.txt", recursive=True)) == ["out/deep/a.txt"]
    walked = [(folder, sorted(names), sorted(files)) for folder, names, files in os.walk("out")]
    assert walked == [("out", ["deep"], ["x.npy", "y.bz2"]), ("out/deep", [], ["a.txt"])]
    assert sorted(path.name for path in Path().rglob("*")) == [
        *("1", "a.txt", "deep", "log.txt", "model.pt", "out", "runs", "x.npy", "y.bz2")
    ]
    assert bz2.decompress(Path("out/y.bz2").read_bytes()) == b"y"
    assert (kept / "out" / "deep" / "a.txt").is_file()


def test_a_file_of_the_user_is_changed_renamed_and_removed_for_the_program_alone(kept: Path) -> None:
    with open("log.txt", "a") as file:
        file.write("second\n")
    assert Path("log.txt").read_text() == "first\nsecond\n"
    os.replace("runs/1/model.pt", "best.pt")
    assert not os.path.exists("runs/1/model.pt") and Path("best.pt").read_text() == "trained"
    assert os.listdir("runs/1") == []
    os.rmdir("runs/1")
    assert os.listdir("runs") == []
    os.remove("log.txt")
    with pytest.raises(FileNotFoundError, match="'log.txt'"):
        Path("log.txt").read_text()
    with pytest.raises(FileNotFoundError, match="'log.txt'"):
        os.remove("log.txt")
    assert sorted(os.listdir()) == ["best.pt", "runs"]
    os.mkdir("runs/1")
    assert os.listdir("runs/1") == []


def test_trees_are_moved_and_removed_for_the_program_alone(kept: Path) -> None:
    shutil.move("runs", "old")
    assert Path("old/1/model.pt").read_text() == "trained" and not Path("runs").exists()
    shutil.rmtree("old")
    assert os.listdir() == ["log.txt"]
    shutil.copytree(".", "copy", ignore=shutil.ignore_patterns("copy"))
    assert os.listdir("copy") == ["log.txt"]
    with pytest.raises(OSError, match="not empty"):
        os.rmdir("copy")


def test_errors_name_the_path_that_the_program_gave(kept: Path) -> None:
    with pytest.raises(FileNotFoundError, match="'nowhere/a.txt'"):
        Path("nowhere/a.txt").write_text("a")
    with pytest.raises(FileExistsError, match="'log.txt'"):
        Path("log.txt").open("x").close()
    with pytest.raises(FileExistsError, match="'runs'"):
        os.mkdir("runs")
    os.mkdir("new")
    with pytest.raises(IsADirectoryError, match="'new'"):
        Path("new").write_text("a")
    os.makedirs("new", exist_ok=True)


def test_links_and_descriptors_reach_the_files_that_were_written(kept: Path) -> None:
    os.makedirs("checkpoints/7")
    Path("checkpoints/7/state").write_text("seven")
    os.symlink("7", "checkpoints/latest")
    assert Path("checkpoints/latest/state").read_text() == "seven"
    os.link("log.txt", "linked.txt")
    assert Path("linked.txt").read_text() == "first\n"
    descriptor = os.open("lock", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    os.close(descriptor)
    with pytest.raises(FileExistsError):
        os.open("lock", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    os.chmod("lock", 0o600)
    assert os.stat("lock").st_mode & 0o777 == 0o600


def test_the_working_folder_may_be_one_that_the_program_made(kept: Path) -> None:
    before = os.getcwd()
    os.makedirs("hydra/1")
    os.chdir("hydra/1")
    Path("config.yaml").write_text("lr: 1")
    assert os.listdir() == ["config.yaml"] and os.getcwd() == os.path.join(before, "hydra", "1")
    os.chdir(before)
    os.makedirs("end")
    os.chdir("end")
    assert (kept / "hydra" / "1" / "config.yaml").is_file()


def test_what_other_programs_write_into_new_folders_moves_to_the_others(kept: Path) -> None:
    os.makedirs("samples")
    Path("samples/a.txt").write_text("a")
    subprocess.run(["touch", "samples/b.txt"], check=True)
    assert sorted(os.listdir("samples")) == ["a.txt", "b.txt"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logging, "raiseExceptions", True)
        handler = logging.FileHandler("samples/train.log")
        handler.emit(logging.makeLogRecord({"msg": "loss"}))
        handler.close()
    assert Path("samples/train.log").read_text() == "loss\n"


def test_files_of_an_earlier_run_are_there(tmp_path: Path, user: Path) -> None:
    folder = tmp_path / "kept"
    with OutputFolder(folder, (str(user),)) as outputs:
        os.makedirs("out")
        Path("out/a.txt").write_text("a")
        os.remove("log.txt")
        subprocess.run(["touch", "out/b.txt"], check=True)
    assert outputs.close() == 2 and not Path("out").exists()
    with OutputFolder(folder, (str(user),)) as outputs:
        assert sorted(os.listdir()) == ["out", "runs"]
        assert sorted(os.listdir("out")) == ["a.txt", "b.txt"]
        os.makedirs("out", exist_ok=True)
        os.chdir("out")
        Path("c.txt").touch()
        os.chdir("..")
    assert outputs.close() == 3


def test_caches_and_temporary_files_are_written_as_ever(
    tmp_path: Path, user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(user / "hub"))
    cache = user / "hub"
    with OutputFolder(tmp_path / "kept", (str(user),)) as outputs:
        cache.mkdir()
        (cache / "weights").write_text("downloaded")
        (tmp_path / "scratch").write_text("scratch")
    assert (cache / "weights").read_text() == "downloaded" and (tmp_path / "scratch").exists()
    assert outputs.close() == 0
    shutil.rmtree(cache)


def test_a_process_that_the_program_starts_shares_the_folder(kept: Path) -> None:
    Path("a.txt").write_text("a")
    code = "from memviz.predictor.outputs import follow_parent; follow_parent()\n"
    code += "print(open('a.txt').read()); open('b.txt', 'w').write('b')"
    folder = str(kept)[: -len(os.getcwd())]
    environment = {**os.environ, "MEMVIZ_PREDICTED_OUTPUTS": os.pathsep.join((folder, os.getcwd()))}
    root = str(Path(__file__).parents[2])
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**environment, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout == "a\n" and Path("b.txt").read_text() == "b"


def test_empty_parts_of_a_file_stay_empty(tmp_path: Path) -> None:
    source, target = tmp_path / "a", tmp_path / "b"
    with source.open("wb") as file:
        file.write(b"begin")
        file.seek(1 << 30)
        file.write(b"end")
        file.truncate((1 << 30) + 5000)
    copy_with_holes(str(source), str(target))
    assert target.stat().st_size == source.stat().st_size and target.stat().st_blocks * 512 < 1 << 20
    with target.open("rb") as file:
        assert file.read(8) == b"begin\0\0\0"
        file.seek(1 << 30)
        assert file.read(4) == b"end\0"


def test_a_checkpoint_is_loaded_by_a_later_run_to_the_device_it_was_saved_from(tmp_path: Path, user: Path) -> None:
    folder = tmp_path / "kept"
    with OutputFolder(folder, (str(user),)), PredictedDevice(A100):
        half = torch.rand(1 << 28, device="cuda", dtype=torch.bfloat16)
        torch.save({"w": half, "b": torch.rand(4, device="cuda").cpu(), "step": torch.tensor(3)}, "a.pt")
        shutil.copyfile("a.pt", "b.pt")
        with open("c.pt", "wb") as file:
            torch.save([half], file)
        # As Lightning does.
        memory = io.BytesIO()
        torch.save({"w": half, "step": torch.tensor(3)}, memory)
        Path("d.pt").write_bytes(memory.getvalue())
    with OutputFolder(folder, (str(user),)) as outputs, PredictedDevice(A100) as device:
        assert os.path.getsize("b.pt") > half.nbytes > 1 << 28
        before = device.allocated_bytes
        loaded = torch.load("b.pt")
        assert loaded["w"].is_cuda and loaded["w"].shape == (1 << 28,) and loaded["w"].dtype == torch.bfloat16
        assert device.allocated_bytes - before == half.nbytes
        assert str(loaded["b"]).startswith("tensor(values unknown") and not loaded["b"].is_cuda
        assert loaded["step"].item() == 3
        for name in ("a.pt", "c.pt"):
            with open(name, "rb") as file:
                tensors = torch.load(file, map_location="cpu")
            assert str(tensors["w"] if name == "a.pt" else tensors[0]).startswith("tensor(values unknown")
        small = torch.load("d.pt")
        assert small["w"].is_cuda and small["w"].shape == (1 << 28,) and small["step"].item() == 3
        twin = Path(outputs.twin("b.pt"))
    assert twin.stat().st_blocks * 512 < 1 << 20
    with pytest.raises(RuntimeError, match="without values"):
        torch.load(twin)


def test_safetensors_with_values_are_kept_apart_too(kept: Path, device: PredictedDevice) -> None:
    library = pytest.importorskip("safetensors.torch")
    library.save_file({"steps": torch.arange(4)}, "steps.safetensors")
    assert library.load_file("steps.safetensors")["steps"].tolist() == [0, 1, 2, 3]
    assert (kept / "steps.safetensors").is_file()


RESUMING = """
import os, subprocess, sys, torch
first = not os.path.exists("out/last.pt")
model = torch.nn.Linear(64, 64).cuda()
step = 0
if first:
    os.makedirs("out")
else:
    saved = torch.load("out/last.pt", map_location="cuda")
    model.load_state_dict(saved["model"])
    step = saved["step"]
torch.save({"model": model.state_dict(), "step": step + 1}, "out/new.pt")
os.replace("out/new.pt", "out/last.pt")
torch.cuda.memory._dump_snapshot("card.pickle")
print("began with step", step, sorted(os.listdir("out")), flush=True)
if len(sys.argv) == 1:
    subprocess.run([sys.executable, sys.argv[0], "again"], check=True)
"""


@pytest.mark.slow
def test_a_predicted_script_goes_on_from_its_checkpoint_and_leaves_none(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RESUMING)
    began = [f"began with step {step} ['last.pt']" for step in range(4)]
    ran = predict("--json", "train.py", folder=tmp_path)
    assert ran.stdout.splitlines()[:2] == began[:2], ran.stderr
    assert json.loads(ran.stdout.splitlines()[-1])["outputs"] == {"files": 1, "folder": None}
    assert "the script wrote 1 file to a temporary folder, now removed" in ran.stderr
    # A snapshot of the pretended card is true.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["card.pickle", "train.py"]
    for step, arguments in ((0, []), (2, ["once"])):
        ran = predict("--json", "--outputs", "kept", "train.py", *arguments, folder=tmp_path)
        assert ran.stdout.splitlines()[0] == began[step], ran.stderr
    kept = tmp_path / "kept"
    assert json.loads(ran.stdout.splitlines()[-1])["outputs"] == {"files": 1, "folder": str(kept)}
    assert [path.name for path in kept.rglob("*") if path.is_file()] == ["last.pt"]
    assert not (tmp_path / "out").exists()


# Files whose values are not computed: the program can open them, and they are removed after the prediction.


def test_a_checkpoint_is_found_under_any_name_while_the_program_runs(tmp_path: Path) -> None:
    with PredictedDevice(A100) as device:
        torch.save({"w": torch.rand(3, 4, device="cuda"), "step": 7}, tmp_path / "new")
        (tmp_path / "new").replace(tmp_path / "last.pt")
        (tmp_path / "copy.pt").write_bytes((tmp_path / "last.pt").read_bytes())
        for name in ("last.pt", "copy.pt"):
            found = torch.load(tmp_path / name, map_location="cpu")
            assert (found["step"], found["w"].shape, found["w"].device.type) == (7, (3, 4), "cpu")
        before = device.allocated_bytes
        again = torch.load(tmp_path / "last.pt", map_location="cuda")["w"]
        assert again.is_cuda and device.allocated_bytes - before == 512
        assert any("were not written" in one.what for one in device.recorder.assumptions.stated)
        with open(tmp_path / "model.pt", "wb") as file:
            torch.save(torch.rand(3, device="cuda"), file)
        assert torch.load(tmp_path / "model.pt").shape == (3,)
        with open(tmp_path / "step.pt", "wb") as file:
            torch.save({"step": 3}, file)
    assert [(tmp_path / name).exists() for name in ("last.pt", "model.pt", "step.pt")] == [False, False, True]


def test_what_is_known_is_written_as_the_card_would(tmp_path: Path) -> None:
    with PredictedDevice(A100):
        torch.save({"w": torch.arange(3, device="cuda"), "of the host": torch.ones(2)}, tmp_path / "w.pt")
        found = torch.load(tmp_path / "w.pt")
        assert found["w"].is_cuda and found["w"].tolist() == [0, 1, 2] and not found["of the host"].is_cuda
    places: list[str] = []
    torch.load(tmp_path / "w.pt", map_location=lambda storage, place: places.append(place) or storage)
    assert places == ["cuda:0", "cpu"]


def test_a_checkpoint_of_an_earlier_run_is_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    torch.save(torch.arange(3), path)
    before = path.read_bytes()
    with PredictedDevice(A100):
        torch.save(torch.rand(5, device="cuda"), path)
        assert torch.load(path).shape == (5,)
        torch.save(torch.rand(6, device="cuda"), tmp_path / "new")
        os.replace(tmp_path / "new", path)
        assert torch.load(path).shape == (6,)
    assert path.read_bytes() == before and not (tmp_path / "new").exists()


def test_folders_that_were_made_for_checkpoints_go_with_them(tmp_path: Path) -> None:
    with PredictedDevice(A100):
        os.makedirs(tmp_path / "runs" / "tmp-1")
        torch.save(torch.rand(3, device="cuda"), tmp_path / "runs" / "tmp-1" / "model.pt")
        os.rename(tmp_path / "runs" / "tmp-1", tmp_path / "runs" / "1")
        (tmp_path / "logs").mkdir()
        (tmp_path / "kept").mkdir()
        (tmp_path / "kept" / "log.txt").write_text("loss")
        torch.save(torch.rand(3, device="cuda"), tmp_path / "kept" / "model.pt")
        assert torch.load(tmp_path / "runs" / "1" / "model.pt").shape == (3,)
    left = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*"))
    assert left == ["kept", "kept/log.txt", "logs"]


def test_the_device_of_a_saved_tensor_is_not_that_of_an_earlier_one(tmp_path: Path, device: PredictedDevice) -> None:
    for _ in range(200):
        torch.save([torch.rand(5, device="cuda")], tmp_path / "card.pt")
    torch.save([torch.tensor([number]) for number in range(200)], tmp_path / "host.pt")
    assert [tensor.is_cuda for tensor in torch.load(tmp_path / "host.pt")] == [False] * 200


def test_what_is_saved_in_memory_is_loaded_from_there(device: PredictedDevice) -> None:
    memory = io.BytesIO()
    torch.save(torch.rand(5, device="cuda"), memory)
    memory.seek(0)
    assert torch.load(io.BytesIO(memory.getvalue()), map_location="cpu").shape == (5,)
    assert torch.load(memory, map_location="cpu").shape == (5,)
    memory.seek(0)
    assert not torch.load(memory, map_location=lambda storage, location: storage).is_cuda
    memory.seek(0)
    assert torch.load(memory, map_location=lambda storage, location: None).is_cuda
    memory = io.BytesIO()
    torch.save({"best": torch.rand(1 << 20, device="cuda").mean().item()}, memory)
    memory.seek(0)
    assert f"{torch.load(memory)['best']:.2f}" == "unknown"


def test_safetensors_are_found_with_their_values_or_without(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.torch")
    path = tmp_path / "w.safetensors"
    with PredictedDevice(A100) as device:
        weights = {"w": torch.rand(128, 64, device="cuda"), "b": torch.rand(64, device="cuda", dtype=torch.bfloat16)}
        library.save_file(weights, path, metadata={"format": "pt"})
        assert path.stat().st_size > 128 * 64 * 4
        host = library.load_file(path)
        assert str(host["w"]).startswith("tensor(values unknown") and not host["w"].is_cuda
        before = device.allocated_bytes
        card = library.load_file(path, device="cuda")
        assert card["b"].is_cuda and card["b"].dtype == torch.bfloat16
        assert device.allocated_bytes - before == 128 * 64 * 4 + 512
        with library.safe_open(path, "pt") as opened:
            assert opened.metadata()["format"] == "pt"
            assert str(opened.get_slice("w")[:2]).startswith("tensor(values unknown")
    assert not path.exists()
    library = pytest.importorskip("safetensors.torch")
    path = tmp_path / "w.safetensors"
    library.save_file({"steps": torch.arange(4)}, path)
    with PredictedDevice(A100):
        assert library.load_file(path, device=0)["steps"].tolist() == [0, 1, 2, 3]
    assert path.exists()


def test_what_is_pickled_comes_back_on_its_card(device: PredictedDevice) -> None:
    model = nn.Linear(1000, 1000, device="cuda")
    before = device.allocated_bytes
    twin = pickle.loads(pickle.dumps(model))
    assert device.allocated_bytes == 2 * before
    assert isinstance(twin.weight, nn.Parameter) and twin.weight.is_cuda and twin.weight.requires_grad
    twin(torch.ones(1, 1000, device="cuda")).sum().backward()
    host = pickle.loads(pickle.dumps({"loss": torch.rand(3, device="cuda").cpu()}))["loss"]
    assert host.shape == (3,) and host.device.type == "cpu" and "unknown" in str(host)
    assert pickle.loads(pickle.dumps(torch.arange(3))).tolist() == [0, 1, 2]
