"""Files whose values are not computed: the program can open them, and they are removed after the prediction."""

import io
import os
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn

from memviz.predictor.device import PredictedDevice
from tests.predictor.rows import A100


def test_a_checkpoint_that_is_renamed_and_copied_is_found_under_any_name(tmp_path: Path) -> None:
    with PredictedDevice(A100):
        torch.save({"w": torch.rand(3, 4, device="cuda")}, tmp_path / "new")
        (tmp_path / "new").replace(tmp_path / "last.pt")
        (tmp_path / "copy.pt").write_bytes((tmp_path / "last.pt").read_bytes())
        for name in ("last.pt", "copy.pt"):
            assert torch.load(tmp_path / name, map_location="cpu")["w"].shape == (3, 4)
    assert not (tmp_path / "last.pt").exists()


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


def test_a_checkpoint_that_was_written_to_an_open_file_does_not_stay(tmp_path: Path) -> None:
    with PredictedDevice(A100):
        with open(tmp_path / "model.pt", "wb") as file:
            torch.save(torch.rand(3, device="cuda"), file)
        assert torch.load(tmp_path / "model.pt").shape == (3,)
        with open(tmp_path / "step.pt", "wb") as file:
            torch.save({"step": 3}, file)
    assert [path.name for path in tmp_path.iterdir()] == ["step.pt"]


def test_the_device_of_a_saved_tensor_is_not_that_of_an_earlier_one(tmp_path: Path) -> None:
    with PredictedDevice(A100):
        for _ in range(200):
            torch.save([torch.rand(5, device="cuda")], tmp_path / "card.pt")
        torch.save([torch.tensor([number]) for number in range(200)], tmp_path / "host.pt")
        assert [tensor.is_cuda for tensor in torch.load(tmp_path / "host.pt")] == [False] * 200


def test_what_is_saved_in_memory_is_loaded_from_there() -> None:
    with PredictedDevice(A100):
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


def test_safetensors_are_found_on_the_host_and_the_card(tmp_path: Path) -> None:
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


def test_safetensors_that_are_there_have_their_values(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.torch")
    path = tmp_path / "w.safetensors"
    library.save_file({"steps": torch.arange(4)}, path)
    with PredictedDevice(A100):
        assert library.load_file(path, device=0)["steps"].tolist() == [0, 1, 2, 3]
    assert path.exists()


def test_what_is_pickled_comes_back_on_its_card() -> None:
    with PredictedDevice(A100) as device:
        model = nn.Linear(1000, 1000, device="cuda")
        before = device.allocated_bytes
        twin = pickle.loads(pickle.dumps(model))
        assert device.allocated_bytes == 2 * before
        assert isinstance(twin.weight, nn.Parameter) and twin.weight.is_cuda and twin.weight.requires_grad
        twin(torch.ones(1, 1000, device="cuda")).sum().backward()
        host = pickle.loads(pickle.dumps({"loss": torch.rand(3, device="cuda").cpu()}))["loss"]
        assert host.shape == (3,) and host.device.type == "cpu" and "unknown" in str(host)
        assert pickle.loads(pickle.dumps(torch.arange(3))).tolist() == [0, 1, 2]
