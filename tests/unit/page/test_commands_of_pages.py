"""`text2grad mark` and `text2grad view` as they are typed: the address, and one line for whatever
is wrong."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from absent import hiding
from synthetic_run import write_run
from text2grad.cli import main


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a command says and its exit code; its server ends as soon as it has begun."""
    monkeypatch.setattr(uvicorn.Server, "run", lambda self, sockets: [each.close() for each in sockets])
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)

    def call(*words: str | Path) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main([str(word) for word in words])
        out, err = capsys.readouterr()
        return int(left.value.code or 0), out, err

    return call


@pytest.fixture
def answers(tmp_path: Path) -> Path:
    (tmp_path / "answers.csv").write_text("prompt,response\nWhen?,Friday.\n", encoding="utf-8")
    return tmp_path / "answers.csv"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere there is always a browser to try")
@pytest.mark.parametrize("name", ["mark", "view"])
def test_without_a_browser_the_address_is_printed(command: Any, answers: Path, tmp_path: Path, name: str) -> None:
    source = answers if name == "mark" else write_run(tmp_path / "run", steps=1)
    code, out, err = command(name, source)
    assert code == 0 and re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{32}\n", out)
    assert "no browser was found: open the address above" in err
    assert "no browser" not in command(name, source, "--no-browser")[2]


BAD = [
    ("mark {folder}/nothing.jsonl", 1, "cannot read .*No such file"),
    ("mark {folder}/answers.csv --out {folder}", 1, "Is a directory"),
    ("mark {folder}/answers.csv --out /proc/no/out.jsonl", 1, "cannot write /proc/no/out.journal"),
    ("mark {folder}/answers.csv --port 70000", 2, "port"),
    *((f"{command} {{folder}}/nothing", 1, "no run folder .*text2grad demo") for command in ("view", "report")),
    ("view {folder}", 1, "nothing to report in .*text2grad demo"),
]


def test_bad_input_is_one_line(command: Any, answers: Path) -> None:
    for words, code, line in BAD:
        ended = command(*words.format(folder=answers.parent).split())
        assert ended[:2] == (code, "") and ended[2].count("\n") == 1, ended
        assert re.search(line, ended[2]), ended


@pytest.mark.parametrize("package", ["starlette", "uvicorn"])
def test_without_the_extra_one_line_names_it(answers: Path, package: str) -> None:
    program = hiding([package]) + f"from text2grad.cli import main\nmain(['mark', {str(answers)!r}])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert f"this needs {package}: pip install 'text2grad[page]'" in done.stderr
