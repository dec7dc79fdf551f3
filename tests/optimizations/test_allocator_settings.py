"""Allocator settings take effect through the environment only; a process started without them gets an error."""

import os

import pytest
import torch
from torch import nn

from memviz.allocator.settings import settings_from_environment
from optimizations.allocator_settings import AllocatorSettings

NAMES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def test_every_variable_that_an_allocator_reads_says_the_same():
    conf = "expandable_segments:True,garbage_collection_threshold:0.8"
    environment = AllocatorSettings(conf).environment
    assert environment == dict.fromkeys(NAMES, conf)
    settings = settings_from_environment(environment)
    assert (settings.expandable_segments, settings.garbage_collection_threshold) == (True, 0.8)


@pytest.mark.parametrize(
    "conf", ["max_split_size_mb:128", "roundup_power2_divisions:[256:1,512:2,>:4]", " a_b:True , c:1"]
)
def test_options_are_told_from_their_values(conf):
    assert AllocatorSettings(conf).conf == conf


def test_without_cuda_nothing_happens(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    model = nn.Linear(2, 2)
    before = model.state_dict()
    AllocatorSettings().check(model, training=True)
    AllocatorSettings().apply(model)()
    assert all(torch.equal(before[name], each) for name, each in model.state_dict().items())


def test_before_cuda_starts_the_environment_counts(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    for name in AllocatorSettings().environment:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match="Start Python with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"):
        AllocatorSettings().apply(nn.Linear(2, 2))
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments: True")
    AllocatorSettings().apply(nn.Linear(2, 2))
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:128")
    with pytest.raises(ValueError, match="settings 'max_split_size_mb:128'"):
        AllocatorSettings().apply(nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("hip", "release", "read"),
    [
        (None, "2.13.0+cu130", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"]),
        ("7.1", "2.9.1+rocm7.1", [*NAMES]),
        ("6.2", "2.8.0+rocm6.2", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"]),
        (None, "2.8.0", ["PYTORCH_CUDA_ALLOC_CONF"]),
    ],
)
def test_of_several_variables_the_one_counts_that_this_torch_reads_first(monkeypatch, hip, release, read):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch, "__version__", release)
    for name in NAMES:
        monkeypatch.setenv(name, f"max_split_size_mb:{20 + NAMES.index(name)}")
    while read:
        AllocatorSettings(os.environ[read[0]]).apply(nn.Linear(1, 1))
        monkeypatch.delenv(read.pop(0))
    with pytest.raises(ValueError, match="has the allocator settings ''"):
        AllocatorSettings().apply(nn.Linear(1, 1))


def test_once_cuda_has_started_what_it_has_read_counts(monkeypatch):
    read = {"allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: read)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    with pytest.raises(ValueError, match="settings 'max_split_size_mb:64', which cannot change after CUDA has started"):
        AllocatorSettings().apply(nn.Linear(2, 2))
    AllocatorSettings("max_split_size_mb:64").apply(nn.Linear(2, 2))
