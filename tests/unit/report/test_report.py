"""The report page: complete, self-contained, inert whatever a model wrote, patient with unfinished runs."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from synthetic_run import sample, write_run, write_seeds
from text2grad.errors import UserError
from text2grad.report.folder import read_run
from text2grad.report.viewer import build_report

HOSTILE = "\"'></script><script>alert(1)</script><img src=x onerror=alert(2)>{{ 7*7 }}\u202egnp\x1b[31m\u2028\ud800"
STRUCTURE = {"role", "kind", "text", "label"}


class Parsed(HTMLParser):
    """What a browser would see: elements with attributes, and the text of scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.raw: dict[str, list[str]] = {"script": [], "style": []}
        self.words: list[str] = []
        self._inside = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag in self.raw:
            self._inside = tag
            self.raw[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = "" if tag == self._inside else self._inside

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.raw[self._inside][-1] += data
        else:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    @property
    def data(self) -> dict[str, Any]:
        return json.loads(self.raw["script"][0])

    @property
    def samples(self) -> list[dict[str, Any]]:
        return self.data["samples"]

    def policy(self) -> str:
        return next(a["content"] for _, a in self.elements if a.get("http-equiv") == "Content-Security-Policy")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("report") / "run")


@pytest.fixture(scope="module")
def page(run: Path) -> str:
    return build_report(run).read_text(encoding="utf-8")


def parsed(folder: Path) -> Parsed:
    return Parsed(build_report(folder).read_text(encoding="utf-8"))


def test_the_page_holds_every_part_of_the_run(page: str) -> None:
    text = Parsed(page).text
    for part in ("Demo: small Python functions", "text2grad demo --out runs/demo", "5 min 41 s", "1,834 MB"):
        assert part in text
    for metric in (
        "heldout_pass@1",
        "score",
        "kl",
        "wrong_sign_rate",
        "explained_variance",
        "entropy",
        "clip_fraction",
    ):
        assert metric in text
    for value in ("0.810", "0.012", "scalar PPO", "program · tests"):
        assert value in text
    assert [item["id"] for item in Parsed(page).data["comparisons"]] == [f"heldout-{n}" for n in range(6)]
    assert "makes them" not in text


def test_the_page_is_small_and_the_same_every_time(run: Path, page: str) -> None:
    assert len(page.encode()) < 3_000_000
    assert build_report(run).read_text(encoding="utf-8") == page


def test_the_page_loads_nothing_and_runs_only_its_own_script(page: str) -> None:
    seen = Parsed(page)
    policy = seen.policy()
    for kind, text in (("script", seen.raw["script"][-1]), ("style", seen.raw["style"][0])):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy
    for tag, attributes in seen.elements:
        own = attributes.get("id") in ("filters", "pairs")
        assert tag not in {"link", "img", "iframe", "object", "base", "form"} or own
        assert not {name for name in attributes if name.startswith("on") or name in ("src", "style")}
    assert not re.search(r"https?://|@import|url\(", page)


def test_whatever_a_model_wrote_is_inert(run: Path, tmp_path: Path) -> None:
    for file in run.rglob("*.json*"):
        target = tmp_path / "run" / file.relative_to(run)
        target.parent.mkdir(parents=True, exist_ok=True)
        rows = [json.dumps(_poisoned(json.loads(line))) for line in file.read_text(encoding="utf-8").splitlines()]
        target.write_text("\n".join(rows) + "\n", encoding="utf-8")
    (tmp_path / "run" / "config.yaml").write_text(HOSTILE.replace("\ud800", ""), encoding="utf-8")
    page = build_report(tmp_path / "run").read_text(encoding="utf-8")
    seen = Parsed(page)
    assert [tag for tag, _ in seen.elements if tag in ("script", "img")] == ["script", "script"]
    assert "<" not in seen.raw["script"][0]
    assert not set(page) & set("\u202e\x1b\u2028\ud800")
    critique = "".join(text for text, _ in seen.samples[0]["critique"])
    assert "49" not in critique and "⟨U+202E⟩" in critique
    assert seen.text.count("alert(1)") > 20


def _poisoned(value: Any, key: str = "") -> Any:
    """`value` with the hostile text appended to every string (and as one more key of every free mapping)."""
    if isinstance(value, dict):
        spans = {"start", "end"} <= value.keys()
        return {k: v if spans and k == "text" else _poisoned(v, k) for k, v in value.items()}
    if isinstance(value, list):
        return [_poisoned(item, key) for item in value]
    return value + HOSTILE if isinstance(value, str) and key not in STRUCTURE else value


def test_a_run_that_was_not_compared_opens_with_its_policies_and_the_gate(run: Path, tmp_path: Path) -> None:
    """One sentence, a row for each policy, whether the reward model is fit; all other figures are folded away."""
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    (folder / "summary.json").unlink()
    figures = {"f1": None, "fresh_paid": 0.5, "fresh": 4, "spoiled_paid": 0.0, "spoiled": 8, "corrected": 16}
    gate = {"fit": False, "reasons": ["it marks by chance"], "cautions": ["few"]}
    written = {**gate, "figures": {**figures, "corrected_faulted": 15 / 16}}
    (folder / "reward_model" / "gate.json").write_text(json.dumps(written))
    measured = folder / "evaluation" / "qa"
    measured.mkdir(parents=True)
    (measured / "text2grad.json").write_text(json.dumps({"greedy_rouge_l": 0.25, "greedy_other": 1, "answers": 3}))
    page = build_report(folder).read_text(encoding="utf-8")
    wanted = [
        "records of feedback with",
        "policies: sft, text2grad",
        'class="policies"',
        "qa: greedy rouge l",
        "0.25",
    ]
    wanted += ["The reward model is not fit to train against", "fault with 15 of 16 answers", "it marks by chance"]
    places = [page.index(each) for each in [*wanted, "All evaluation figures"]]
    assert places == sorted(places)
    assert '<details class="fold"><summary>All evaluation figures' in page
    (folder / "reward_model" / "gate.json").write_text("{}")
    assert "fit to train against" not in build_report(folder).read_text(encoding="utf-8")


def test_a_run_with_sft_only_says_which_commands_make_the_rest(run: Path, tmp_path: Path) -> None:
    (tmp_path / "sft").mkdir()
    (tmp_path / "sft" / "metrics.jsonl").write_bytes((run / "sft" / "metrics.jsonl").read_bytes())
    text = parsed(tmp_path).text
    assert "loss" in text
    for command in ("evaluate", "train", "annotate", "train-reward"):
        assert f"text2grad {command} makes them" in text


@pytest.mark.parametrize(
    "part", ["summary.json", "feedback.jsonl", "ppo", "before_after.jsonl", "sft", "evaluation"]
)
def test_any_part_may_be_missing(part: str, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", steps=3)
    gone = folder / part
    gone.rename(tmp_path / "elsewhere")
    assert parsed(folder).elements


def test_a_missing_or_empty_folder_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no run folder .*text2grad demo"):
        build_report(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"nothing to report .*text2grad demo"):
        build_report(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_line_is_named_and_a_torn_last_line_is_noted(tmp_path: Path) -> None:
    metrics = write_run(tmp_path / "run", steps=4) / "ppo" / "text2grad" / "metrics.jsonl"
    lines = metrics.read_text(encoding="utf-8")
    metrics.write_text(lines + '{"step": 4, "sco', encoding="utf-8")
    assert "last line of text2grad/metrics.jsonl is cut off" in parsed(tmp_path / "run").text
    metrics.write_text('{"step": 0}\n{"sco\n' + lines, encoding="utf-8")
    with pytest.raises(UserError, match=r"metrics.jsonl:2: not JSON.*remove line 2"):
        build_report(tmp_path / "run")
    metrics.write_text('{"score": 1}\n', encoding="utf-8")
    with pytest.raises(UserError, match=r"metrics.jsonl:1: step: Field required"):
        build_report(tmp_path / "run")


def test_values_that_are_not_finite_are_counted_not_drawn(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", steps=4)
    path = folder / "ppo" / "text2grad" / "metrics.jsonl"
    path.write_text(
        '{"step": 0, "kl": 1.0}\n{"step": 1, "kl": NaN}\n{"step": 2, "kl": Infinity}\n', encoding="utf-8"
    )
    samples = folder / "ppo" / "text2grad" / "samples.jsonl"
    rows = [json.loads(line) for line in samples.read_text(encoding="utf-8").splitlines()]
    rows[0]["value"][0] = float("nan")
    samples.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    seen = parsed(folder)
    assert "2 values are not finite" in seen.text
    assert "Some numbers are not finite." in seen.samples[0]["checks"]
    assert seen.samples[0]["rows"]["value"][0] is None


def test_several_seeds_share_a_page_and_have_one_each(tmp_path: Path) -> None:
    top = parsed(write_seeds(tmp_path / "run", seeds=3))
    links = [attributes["href"] for tag, attributes in top.elements if tag == "a"]
    assert [link for link in links if not link.startswith("#")] == [f"seed-{i}/report.html" for i in range(3)]
    seed = (tmp_path / "run" / "seed-1" / "report.html").read_text(encoding="utf-8")
    assert 'href="../report.html"' in seed and Parsed(seed).samples
    assert "±" in top.text and "mean of 3 seeds" in top.text
    thin = [a for tag, a in top.elements if tag == "path" and "thin" in a["class"]]
    bold = [a for tag, a in top.elements if tag == "path" and "thin" not in a["class"] and "L" in a["d"]]
    assert len(thin) == 3 * len(bold) > 0


def test_seed_folders_are_read_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for number in (10, 2, 0):
        write_run(tmp_path / f"seed-{number}", steps=1)
    assert [seed.path.name for seed in read_run(tmp_path).seeds] == ["seed-0", "seed-2", "seed-10"]


def test_many_long_samples_are_thinned_evenly_and_counted(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", steps=2)
    row = sample("text2grad", 0, 0, random.Random(0))
    long = {**row, "tokens": ["x"] * 4000, "starts": [0] * 4000, "ends": [0] * 4000, "delta": [0.123] * 4000}
    path = folder / "ppo" / "text2grad" / "samples.jsonl"
    path.write_text("".join(json.dumps({**long, "step": step}) + "\n" for step in range(100)), encoding="utf-8")
    seen = parsed(folder)
    assert (folder / "report.html").stat().st_size < 3_000_000
    kept = [row["step"] for row in seen.samples if row["method"] == "text2grad"]
    assert 0 in kept and max(kept) > 80
    scalar = (folder / "ppo" / "scalar_ppo" / "samples.jsonl").read_text(encoding="utf-8")
    total = 100 + scalar.count("\n")
    assert f"{total - len(seen.samples)} more samples" in seen.text


def test_a_report_is_never_written_through_a_link(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "run", tmp_path / "precious"
    write_run(folder)
    elsewhere.write_text("mine")
    (folder / "report.html").symlink_to(elsewhere)
    with pytest.raises(UserError, match=r"report\.html: it is a link to another place"):
        build_report(folder)
    assert elsewhere.read_text() == "mine"
    (folder / "report.html").unlink()
    (folder / "report.html").symlink_to(tmp_path / "nothing")
    with pytest.raises(UserError, match="it is a link"):
        build_report(folder)
    assert not (tmp_path / "nothing").exists()


def test_a_run_folder_may_be_a_link_but_a_seed_that_is_one_gets_no_page(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    write_run(tmp_path / "other")
    (tmp_path / "run" / "seed-0").symlink_to(tmp_path / "other")
    (tmp_path / "latest").symlink_to(tmp_path / "run")
    assert build_report(tmp_path / "latest").read_text().startswith("<!doctype html>")
    assert not (tmp_path / "other" / "report.html").exists()


@pytest.mark.parametrize("name", ["summary.json", "ppo/text2grad/samples.jsonl", "feedback.jsonl"])
def test_a_file_of_a_run_nested_without_end_is_one_line(tmp_path: Path, name: str) -> None:
    write_run(tmp_path)
    (tmp_path / name).write_text("[" * 3000 + "\n\n")
    with pytest.raises(UserError, match="not JSON: nested too deeply"):
        build_report(tmp_path)


# What is shown only where it says something


def captions(page: str) -> dict[str, str]:
    """Of each chart its name and the line on how to read it."""
    found = re.findall(r"<figcaption><b>(.*?)</b>(?: <span>(.*?)</span>)?</figcaption>", page)
    return dict(found)


def metrics(folder: Path, rows: list[dict[str, float]]) -> None:
    folder.mkdir(parents=True)
    lines = [json.dumps({"step": step, **row}) + "\n" for step, row in enumerate(rows)]
    (folder / "metrics.jsonl").write_text("".join(lines), encoding="utf-8")


def test_each_loss_has_its_own_caption(tmp_path: Path) -> None:
    metrics(tmp_path / "reward_model", [{"loss": 2.0, "label_loss": 1.0}, {"loss": 1.0, "label_loss": 0.5}])
    found = captions(build_report(tmp_path).read_text(encoding="utf-8"))
    assert found["loss"].startswith("next-token cross-entropy on the answer")
    assert "next-token" not in found["label_loss"] and "log p(label) of the response" in found["label_loss"]


@pytest.mark.parametrize("constant", [0.0, 1.0])
def test_without_a_value_function_nothing_is_shown_of_one(tmp_path: Path, constant: float) -> None:
    row = {"value": 0.0, "value_loss": 0.4, "explained_variance": constant}
    metrics(tmp_path / "ppo" / "text2grad", [{"score": score, **row} for score in (0.5, 0.6)])
    page = build_report(tmp_path).read_text(encoding="utf-8")
    assert set(captions(page)) == {"score"} and "value_loss" not in page


def test_a_run_with_a_value_function_beside_one_without_shows_its_own(tmp_path: Path) -> None:
    rows = [{"score": x, "value": x, "value_loss": 0.4 - x, "explained_variance": x} for x in (0.0, 0.2)]
    metrics(tmp_path / "ppo" / "scalar_ppo", rows)
    metrics(tmp_path / "ppo" / "text2grad", [{**rows[0]}] * 2)
    page = build_report(tmp_path).read_text(encoding="utf-8")
    assert {"score", "value", "value_loss", "explained_variance"} == set(captions(page))
    assert 'aria-label="value_loss, step 1: scalar_ppo 0.2"' in page


def test_comparisons_are_made_by_evaluate(tmp_path: Path) -> None:
    metrics(tmp_path / "sft", [{"loss": 1.0}])
    said = parsed(tmp_path).text
    assert "No comparisons yet: text2grad evaluate makes them." in said


def test_what_never_changes_is_a_line_and_every_name_is_explained(tmp_path: Path) -> None:
    rows = [{"score": 0.5, "forced": 0.0, "kl_coefficient": 0.05, "clip_fraction": x} for x in (0.1, 0.2)]
    metrics(tmp_path / "ppo" / "text2grad", rows)
    page = build_report(tmp_path).read_text(encoding="utf-8")
    assert set(captions(page)) == {"clip_fraction"} and "clipping" in captions(page)["clip_fraction"]
    assert "The same in all steps: <b>forced</b> 0, <b>kl_coefficient</b> 0.05, <b>score</b> 0.5" in page
    assert "<dt>forced</dt><dd>share of responses whose critique was ended by the token limit" in page
    assert "Look out for: " in page


def test_the_headline_has_the_intervals_that_were_computed(tmp_path: Path, page: str) -> None:
    assert '<p class="headline">held-out pass@1 SFT 0.' in page
    run = write_run(tmp_path / "run", steps=1)
    summary = json.loads((run / "summary.json").read_text())
    summary["table"] = {"head": ["method", "sampled", "95 %"], "rows": [["text2grad", "0.7", "0.6 to 0.8"]]}
    (run / "summary.json").write_text(json.dumps(summary))
    assert "(0.6 to 0.8)</p>" in build_report(run).read_text(encoding="utf-8")
