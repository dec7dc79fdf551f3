"""Under which names the page answers."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest

from memviz.ui.shell.request_guard import host_of, is_known, is_loopback, is_of_a_space, names_given, names_of_page


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("localhost:7860", "localhost"),
        ("LOCALHOST", "localhost"),
        ("[::1]:7860", "::1"),
        ("example.org.", "example.org"),
        ("https://example.org:8443/page", "example.org"),
        ("user@example.org", "example.org"),
        ("127.0.0.1@evil.example", "evil.example"),
        ("a b", ""),
        ("[::1", ""),
        ("", ""),
        ("null", "null"),
        ("exämple.org", ""),
    ],
)
def test_the_name_in_a_header(text: str, name: str):
    assert host_of(text) == name


def test_without_a_setting_only_this_machine_and_plain_addresses_are_known():
    names = names_given({})
    known = ["localhost", "app.localhost", "127.0.0.1", "::1", "10.0.0.7", "fe80::1%eth0", socket.gethostname().lower()]
    assert [each for each in known if not is_known(each, names)] == []
    strange = ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "", "notlocalhost", "hf.space"]
    assert [each for each in strange if is_known(each, names)] == []


def test_names_come_from_the_setting_and_from_where_it_runs():
    names = names_given(
        {
            "MEMVIZ_ALLOWED_HOSTS": "traces.example.org, https://other.example:8443/x *.lab.example .corp.example",
            "SPACE_HOST": "me-memviz.hf.space",
            "GRADIO_ROOT_PATH": "https://hub.example.org/user/me/proxy/7860",
            "GRADIO_SERVER_NAME": "0.0.0.0",
        }
    )
    known = ["traces.example.org", "other.example", "a.lab.example", "b.c.corp.example", "me-memviz.hf.space"]
    assert [each for each in [*known, "hub.example.org"] if not is_known(each, names)] == []
    strange = ["example.org", "lab.example", "evil-lab.example", "other.hf.space", "traces.example.org.evil.example"]
    assert [each for each in strange if is_known(each, names)] == []
    assert is_of_a_space("me-memviz--dev.hf.space", {"SPACE_ID": "me/memviz"})
    assert not is_of_a_space("me-memviz--dev.hf.space", {})
    assert is_known("anything.example", names_given({"MEMVIZ_ALLOWED_HOSTS": "*"}))
    assert not is_known("evil.example", names_given({"MEMVIZ_ALLOWED_HOSTS": " , "}))
    assert not is_known("evil.example", names_given({"GRADIO_ROOT_PATH": "/memviz"}))


def test_what_gradio_learns_once_it_is_up_is_known_from_then_on():
    page = SimpleNamespace(
        server_name="box.example",
        local_url="http://localhost:7860/",
        share_url="https://ab12.gradio.live",
        root_path="",
    )
    assert {"box.example", "localhost", "ab12.gradio.live"} <= set(names_of_page(page))
    assert set(names_of_page(SimpleNamespace(share_url=None, root_path="/memviz"))) == set()


def test_only_this_machine_is_loopback():
    assert [each for each in ("localhost", "127.0.0.1", "127.9.9.9", "::1") if not is_loopback(each)] == []
    assert [each for each in ("10.0.0.1", "0.0.0.0", "evil.example", "", "localhost.evil") if is_loopback(each)] == []
