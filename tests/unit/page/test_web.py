"""The logic of the pages, by node's own test runner; node is needed for these tests alone, not to
use the pages."""

from __future__ import annotations

import shutil
import subprocess
from importlib import import_module
from pathlib import Path

import pytest

from text2grad.page.render import bundle

NODE = shutil.which("node")
TESTS = Path(__file__).with_name("web")

pytestmark = pytest.mark.skipif(NODE is None, reason="node is not installed (apt install nodejs)")


def test_the_modules_do_what_they_should() -> None:
    files = sorted(map(str, TESTS.glob("*.test.mjs")))
    done = subprocess.run([str(NODE), "--test", *files], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout[-6000:]


@pytest.mark.parametrize("page", ["text2grad.page.mark", "text2grad.page.report"])
def test_a_bundle_is_one_script_without_two_of_a_name(page: str, tmp_path: Path) -> None:
    code = bundle(import_module(page).SCRIPTS)
    assert "import " not in code and "export " not in code
    (tmp_path / "bundle.js").write_text(code, encoding="utf-8")
    done = subprocess.run(
        [str(NODE), "--check", str(tmp_path / "bundle.js")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
