"""A run that is looked at while it trains: what is written appears, what is half written waits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from page_requests import ask
from synthetic_run import write_run, write_seeds
from text2grad.errors import UserError
from text2grad.page.view import ViewPage


def got(page: ViewPage, path: str, status: int = 200) -> Any:
    """The JSON of an answer."""
    code, _, body = ask(page.app(), path, {})
    assert code == status, body
    return json.loads(body)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", steps=5)


def append(run: Path, text: str, name: str = "samples.jsonl") -> None:
    with (run / "ppo/text2grad" / name).open("a", encoding="utf-8") as file:
        file.write(text)


def a_line(run: Path, **changed: Any) -> str:
    first = (run / "ppo/text2grad/samples.jsonl").read_text(encoding="utf-8").splitlines()[0]
    return json.dumps({**json.loads(first), **changed})


def test_new_samples_appear_and_half_a_line_waits(run: Path) -> None:
    page = ViewPage(run)
    have = len(got(page, "/api/entries")["entries"])
    line = a_line(run, id="new", critique="Unlike any other.")
    append(run, line[:50])
    assert got(page, f"/api/entries?have={have}")["entries"] == []
    append(run, line[50:] + "\n")
    [entry] = got(page, f"/api/entries?have={have}")["entries"]
    assert entry["id"] == "new" and got(page, "/api/search?q=UNLIKE ANY")["keys"] == [entry["key"]]
    view = got(page, f"/api/samples?key={entry['key']}")
    assert view["critique"] == [["Unlike any other.", []]] and view["rows"]["delta"]


def test_the_numbers_of_metrics_change_the_stamp_and_the_page(run: Path) -> None:
    page = ViewPage(run)
    stamp = got(page, "/api/entries")["stamp"]
    assert got(page, "/api/entries")["stamp"] == stamp
    append(run, '{"step": 99, "kl": 7.25}\n{"step": 100, "k', "metrics.jsonl")
    assert got(page, "/api/entries")["stamp"] != stamp
    code, _, body = ask(page.app(), "/", {})
    assert code == 200 and "7.25" in body.decode() and "is cut off and was left out" in body.decode()
    assert "problem-000-0" not in body.decode()


def test_a_run_that_began_anew_is_listed_anew(run: Path) -> None:
    page = ViewPage(run)
    have = len(got(page, "/api/entries")["entries"])
    (run / "ppo/text2grad/samples.jsonl").write_text(a_line(run, id="first") + "\n", encoding="utf-8")
    found = got(page, f"/api/entries?have={have}")
    assert found["restarted"] and [e["id"] for e in found["entries"] if e["method"] == "text2grad"] == ["first"]


def test_a_page_that_knows_more_than_there_is_gets_all(run: Path) -> None:
    page = ViewPage(run)
    every = got(page, "/api/entries")["entries"]
    found = got(page, "/api/entries?have=100000")
    assert found["restarted"] and found["entries"] == every


def test_the_samples_of_all_seeds_are_on_one_page(tmp_path: Path) -> None:
    page = ViewPage(write_seeds(tmp_path / "run", seeds=2))
    methods = {entry["method"] for entry in got(page, "/api/entries")["entries"]}
    assert methods == {f"seed-{n} {name}" for n in (0, 1) for name in ("text2grad", "scalar_ppo")}
    assert "Samples of all seeds are below" in ask(page.app(), "/", {})[2].decode()


@pytest.mark.parametrize(
    "key", ["", "text2grad", "text2grad/-1", "text2grad/99999", "../x/0", "text2grad/²", "a/0"]
)
def test_a_key_names_a_sample_or_nothing(run: Path, key: str) -> None:
    assert "no such sample" in got(ViewPage(run), f"/api/samples?key={key}", 404)["error"]


def test_a_damaged_line_is_named(run: Path) -> None:
    page = ViewPage(run)
    append(run, "{}\n")
    assert "samples.jsonl:17: step: Field required" in got(page, "/api/entries", 500)["error"]
    with pytest.raises(UserError, match=r"samples\.jsonl:17"):
        ViewPage(run)
    (run / "summary.json").write_text("[")
    code, _, body = ask(page.app(), "/", {})
    assert code == 500 and "summary.json: not JSON" in body.decode()


def test_a_folder_without_a_run_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nothing to report .*text2grad demo"):
        ViewPage(tmp_path)
