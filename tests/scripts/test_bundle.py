"""Modules are bundled into one script: each once, after its imports, with refusals of other syntax."""

from pathlib import Path

import pytest

from memviz.ui.components.scripts import bundle


def written(folder: Path, **modules: str) -> Path:
    for name, text in modules.items():
        (folder / f"{name}.js").write_text(text, encoding="utf-8")
    return folder / f"{next(iter(modules))}.js"


def test_each_module_stands_once_and_after_what_it_imports(tmp_path: Path) -> None:
    entry = written(
        tmp_path,
        top='import { left } from "./left.js";\nimport { right as other } from "./right.js";\nexport const top = 1;',
        left='import { base } from "./base.js";\nexport function left() { return base; }',
        right='import { base } from "./base.js";\nexport class right {}',
        base="export const base = 1;\nexport async function wait() {}",
    )
    text = bundle(entry)
    places = [text.index(f'{name}.js"] = (() =>') for name in ("base", "left", "right", "top")]
    assert places == sorted(places)
    assert text.count("const base = 1;") == 1
    assert "const { right: other } = modules[" in text
    assert "return { base, wait };" in text
    assert 'memviz["top"] = modules[' in text
    assert "export" not in text and "import" not in text


@pytest.mark.parametrize(
    "text",
    [
        "export default 1;",
        "export let changing = 1;",
        "export { one };",
        "/** @type {number} */ export const one = 1;",
        'import * as all from "./base.js";',
        'import all from "./base.js";',
        'import "./base.js";',
        'import { one } from "a-package";',
        "const markup = '</script>';",
    ],
)
def test_what_it_does_not_understand_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match=r"top\.js cannot be bundled"):
        bundle(written(tmp_path, top=text, base="export const one = 1;"))


def test_a_circle_is_named(tmp_path: Path) -> None:
    entry = written(
        tmp_path,
        one='import { two } from "./two.js";\nexport const one = 1;',
        two='import { one } from "./one.js";\nexport const two = 2;',
    )
    with pytest.raises(ValueError, match=r"in a circle: .*one\.js -> .*two\.js -> .*one\.js"):
        bundle(entry)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"gone\.js"):
        bundle(written(tmp_path, top='import { gone } from "./gone.js";'))
