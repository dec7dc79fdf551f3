"""Only the environment carries them, and a process that started without them is told so."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from memviz.allocator.settings import settings_from_environment
from optimizations.allocator_settings import AllocatorSettings


def test_both_variables_say_what_the_allocator_reads():
    conf = "expandable_segments:True,garbage_collection_threshold:0.8"
    environment = AllocatorSettings(conf).environment
    assert environment == {"PYTORCH_CUDA_ALLOC_CONF": conf, "PYTORCH_ALLOC_CONF": conf}
    settings = settings_from_environment(environment)
    assert (settings.expandable_segments, settings.garbage_collection_threshold) == (True, 0.8)


@pytest.mark.parametrize(
    "conf", ["max_split_size_mb:128", "roundup_power2_divisions:[256:1,512:2,>:4]", " a_b:True , c:1"]
)
def test_options_are_told_from_their_values(conf):
    assert AllocatorSettings(conf).conf == conf


@pytest.mark.parametrize("conf", ["", "  ", "expandable_segments", "expandable_segments=True", "a:1,,b", "a:[1,2"])
def test_what_is_no_option_is_refused(conf):
    with pytest.raises(ValueError, match="write name:value"):
        AllocatorSettings(conf)


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
    with pytest.raises(ValueError, match="start Python with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"):
        AllocatorSettings().apply(nn.Linear(2, 2))
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments: True")
    AllocatorSettings().apply(nn.Linear(2, 2))
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:128")
    with pytest.raises(ValueError, match="settings 'max_split_size_mb:128'"):
        AllocatorSettings().apply(nn.Linear(2, 2))


def test_once_cuda_has_started_what_it_has_read_counts(monkeypatch):
    read = {"allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: read)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    with pytest.raises(ValueError, match="settings 'max_split_size_mb:64', and once CUDA has started they stay"):
        AllocatorSettings().apply(nn.Linear(2, 2))
    AllocatorSettings("max_split_size_mb:64").apply(nn.Linear(2, 2))


def test_its_code_sets_them_before_torch_is_there():
    program = AllocatorSettings("max_split_size_mb:64").code() + "\nprint(os.environ['PYTORCH_CUDA_ALLOC_CONF'])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=dict(os.environ))
    assert (done.stdout, done.stderr) == ("max_split_size_mb:64\n", "")
