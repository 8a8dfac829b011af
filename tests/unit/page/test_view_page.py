"""A run that is looked at while it trains: what is written appears, what is half written waits."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from page_requests import ask
from synthetic_run import write_run
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


@pytest.mark.parametrize("cut", [50, -4])  # -4: within a character
def test_new_samples_appear_and_half_a_line_waits(run: Path, cut: int) -> None:
    page = ViewPage(run)
    have = len(got(page, "/api/entries")["entries"])
    row = {**json.loads(a_line(run)), "id": "new", "critique": "Ünlike any other ï"}
    row["critique"] = row.pop("critique")  # the last of the line
    line = json.dumps(row, ensure_ascii=False).encode()
    with (run / "ppo/text2grad/samples.jsonl").open("ab") as file:
        file.write(line[:cut])
        file.flush()
        assert got(page, f"/api/entries?have={have}")["entries"] == []
        file.write(line[cut:] + b"\n")
    [entry] = got(page, f"/api/entries?have={have}")["entries"]
    assert entry["id"] == "new"
    assert got(page, f"/api/search?q={quote('ÜNLIKE ANY')}")["keys"] == [entry["key"]]
    view = got(page, f"/api/samples?key={entry['key']}")
    assert view["critique"] == [["Ünlike any other ï", []]] and view["rows"]["delta"]


def test_the_numbers_of_metrics_change_the_stamp_and_the_page(run: Path) -> None:
    page = ViewPage(run)
    stamp = got(page, "/api/entries")["stamp"]
    assert got(page, "/api/entries")["stamp"] == stamp
    append(run, '{"step": 99, "kl": 7.25}\n{"step": 100, "k', "metrics.jsonl")
    assert got(page, "/api/entries")["stamp"] != stamp
    code, _, body = ask(page.app(), "/", {})
    assert code == 200 and "7.25" in body.decode() and "is cut off and was left out" in body.decode()
    assert "problem-000-0" not in body.decode()


def test_a_file_that_is_another_one_now_is_read_anew(run: Path) -> None:
    """Also one that has grown beyond what was read."""
    page = ViewPage(run)
    for words in (0, 100_000):
        have = len(got(page, "/api/entries")["entries"])
        row = a_line(run, id=f"first {words}", response="word " * words, spans=[])
        (run / "ppo/text2grad/samples.jsonl").write_text(row + "\n", encoding="utf-8")
        found = got(page, f"/api/entries?have={have}")
        ids = [entry["id"] for entry in found["entries"] if entry["method"] == "text2grad"]
        assert found["restarted"] and ids == [f"first {words}"]
    for key in ("", "text2grad", "text2grad/-1", "text2grad/99999", "../x/0", "text2grad/²", "a/0"):
        got(page, f"/api/samples?key={key}", 404)


def test_many_who_ask_at_once_get_each_line_once(run: Path) -> None:
    page = ViewPage(run)
    have = len(got(page, "/api/entries")["entries"])
    append(run, "".join(a_line(run, id=f"new-{number}") + "\n" for number in range(300)))
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: got(page, f"/api/entries?have={have}")["entries"], range(16)))
    assert {tuple(each["id"] for each in entries) for entries in found} == {tuple(f"new-{n}" for n in range(300))}


def test_a_signal_is_offered_where_a_run_has_it(run: Path) -> None:
    page = ViewPage(run)
    every = got(page, "/api/entries")
    assert every["signals"] == ["advantage", "delta", "kl", "logp", "reward", "value"]
    more = got(page, "/api/entries?have=100000")  # a page that knows more than there is gets all
    assert more["restarted"] and more["entries"] == every["entries"]
    append(run, a_line(run, ratio=[1.5], learned=[1, 0], logp_change=[None], probe=True) + "\n")
    new = got(page, "/api/entries?have=32")
    assert {"ratio", "learned", "logp_change"} <= set(new["signals"]) and new["entries"][-1]["probe"]


def test_the_samples_of_several_runs_are_on_one_page(run: Path, tmp_path: Path) -> None:
    page = ViewPage(run, write_run(tmp_path / "other", steps=5))
    methods = {entry["method"] for entry in got(page, "/api/entries")["entries"]}
    assert methods == {f"{name} {method}" for name in ("run", "other") for method in ("text2grad", "scalar_ppo")}
    assert len(got(page, "/api/comparisons")["items"][0]["answers"]) == 6
    assert got(page, "/api/samples?key=other text2grad/0")["method"] == "other text2grad"


def test_a_damaged_line_is_named(run: Path) -> None:
    page = ViewPage(run)
    append(run, "{}\n")
    for _ in range(2):  # it is not passed over in silence
        assert "samples.jsonl:17" in got(page, "/api/entries", 500)["error"]
    with pytest.raises(UserError, match=r"samples\.jsonl:17"):
        ViewPage(run)
    (run / "model.json").write_text("[")
    code, _, body = ask(page.app(), "/", {})
    assert code == 500 and "model.json: not a JSON" in body.decode()


@pytest.mark.parametrize("number", ["9" * 5000, "²", "-1", ""])
def test_a_number_that_is_none_is_no_error_of_the_server(run: Path, number: str) -> None:
    page = ViewPage(run)
    entries = got(page, "/api/entries")["entries"]
    assert len(got(page, f"/api/entries?have={quote(number)}")["entries"]) == len(entries)
    got(page, f"/api/samples?key={entries[0]['key'].rpartition('/')[0]}/{quote(number)}", 404)
