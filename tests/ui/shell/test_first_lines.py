"""Gradio's files that a page loads, found in Gradio's own table."""

from __future__ import annotations

from pathlib import Path

from memviz.ui.shell.static_cache import FRONTEND, files_of_page, preload_html

ENTRY = '<script type="module" crossorigin src="./assets/index-1.js"></script>'


def written(folder: Path, **scripts: str) -> Path:
    (folder / "assets").mkdir()
    (folder / "index.html").write_text(ENTRY)
    for name, text in scripts.items():
        (folder / "assets" / f"{name.replace('_', '-')}.js").write_text(text)
    return folder


def test_what_each_kind_needs_and_nothing_that_no_kind_does(tmp_path: Path):
    core = (
        'm.f=["./plot.js","./button.js","./a.css"];'
        "x={plot:{component:()=>v(()=>import(`./plot.js`),__vite__mapDeps([0]))},"
        "button:{example:()=>v(()=>import(`./plot.js`),__vite__mapDeps([0])),"
        "component:()=>v(()=>import(`./button.js`).then(e=>e.t),__vite__mapDeps([1,2]))}}"
    )
    folder = written(
        tmp_path,
        index_1='m.f=["./Index-2.js"];import(`./Index-2.js`),__vite__mapDeps([0]);import(`./core-3.js`)',
        Index_2='import"./core-3.js";import(`./Blocks-4.js`)',
        Blocks_4="",
        core_3=core,
        plot="",
        button='import{a}from"./shared.js"',
        shared="",
    )
    files = files_of_page(folder, ["button"])
    assert files == ["index-1.js", "Index-2.js", "core-3.js", "Blocks-4.js", "button.js", "shared.js", "a.css"]
    assert 'rel="modulepreload" crossorigin href="./assets/button.js"' in preload_html(files)
    assert 'rel="preload" as="style" crossorigin href="./assets/a.css"' in preload_html(files)


def test_where_gradio_is_built_otherwise_nothing_is_named(tmp_path: Path):
    assert files_of_page(tmp_path, ["html"]) == []
    assert files_of_page(written(tmp_path, index_1="import(`./gone.js`)"), ["html"]) == []


def test_the_installed_gradio_is_understood():
    files = files_of_page(FRONTEND, ["html", "file"])
    assert all((FRONTEND / "assets" / file).is_file() for file in files)
    assert any(file.startswith("HTML-") for file in files)
    assert not set(files_of_page(FRONTEND, ["html"])) >= set(files)
