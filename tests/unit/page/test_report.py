"""The page of a run: complete, self-contained, inert whatever a model wrote, patient with
unfinished runs."""

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

from browser_pages import HOSTILE, hostile_run
from synthetic_run import sample, write_run
from text2grad.errors import UserError
from text2grad.page.report import MAIN, arrange, build_report, changed_settings
from text2grad.page.runs import read_run


class Parsed(HTMLParser):
    """The elements of a page with their attributes, its text, that of scripts and styles, and its
    data."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.raw: dict[str, list[str]] = {"script": [], "style": []}
        self._words: list[str] = []
        self._inside = ""
        self.feed(page)
        self.close()
        self.text = " ".join(" ".join(self._words).split())
        self.data: dict[str, Any] = json.loads(self.raw["script"][0])
        self.samples: list[dict[str, Any]] = self.data["samples"]

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
            self._words.append(data)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("report") / "run")


@pytest.fixture(scope="module")
def page(run: Path) -> str:
    return build_report(run).read_text(encoding="utf-8")


def parsed(folder: Path) -> Parsed:
    return Parsed(build_report(folder).read_text(encoding="utf-8"))


def write_metrics(folder: Path, rows: list[dict[str, float]]) -> None:
    folder.mkdir(parents=True)
    lines = [json.dumps({"step": step, **row}) + "\n" for step, row in enumerate(rows)]
    (folder / "metrics.jsonl").write_text("".join(lines), encoding="utf-8")


def test_the_page_holds_every_part_of_the_run_and_is_the_same_every_time(run: Path, page: str) -> None:
    parts = (
        *("On 6 held-out prompts text2grad is", "The loss went from", "77% of the good tokens"),
        *("tests passed, sampled", "share of tokens pushed the wrong way", "clip_fraction", "24 records"),
    )
    text = Parsed(page).text
    assert [part for part in parts if part not in text] == []
    assert [item["id"] for item in Parsed(page).data["comparisons"]] == [f"heldout-{n}" for n in range(6)]
    assert "makes them" not in text
    assert len(page.encode()) < 3_000_000
    assert build_report(run).read_text(encoding="utf-8") == page


def test_the_page_loads_nothing_and_runs_only_its_own_script(page: str) -> None:
    seen = Parsed(page)
    policy = next(a["content"] for _, a in seen.elements if a.get("http-equiv") == "Content-Security-Policy")
    for kind, text in (("script", seen.raw["script"][-1]), ("style", seen.raw["style"][0])):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy
    for tag, attributes in seen.elements:
        ours = attributes.get("id") in ("filters", "pairs")
        assert tag not in {"link", "img", "iframe", "object", "base", "form"} or ours
        assert not {name for name in attributes if name.startswith("on") or name in ("src", "style")}
    assert not re.search(r"https?://|@import|url\(", page)


def test_whatever_a_model_wrote_is_inert(tmp_path: Path) -> None:
    run = hostile_run(tmp_path / "run", long=1000)
    (run / "config.yaml").write_text(HOSTILE, encoding="utf-8")
    page = build_report(run).read_text(encoding="utf-8")
    seen = Parsed(page)
    assert [tag for tag, _ in seen.elements if tag in ("script", "img", "iframe")] == ["script", "script"]
    assert "<" not in seen.raw["script"][0]
    assert not set(page) & set("\u202e\x1b\u2028\u200b\u0000")
    critique = "".join(text for text, _ in seen.samples[0]["critique"])
    assert "49" not in critique and "⟨U+202E⟩" in critique
    assert seen.text.count("window.pwned=1") > 6


def test_policies_are_in_order_and_the_gate_is_shown(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    figures = {"f1": None, "fresh_paid": 0.5, "fresh": 4, "spoiled_paid": 0.0, "spoiled": 8}
    gate = {"fit": False, "reasons": ["it marks by chance"], "cautions": ["few"], "figures": figures}
    (folder / "reward_model" / "gate.json").write_text(json.dumps(gate))
    shutil.rmtree(folder / "evaluation" / "demo")
    place = folder / "evaluation" / "qa"
    place.mkdir()
    for name, value in (("text2grad", 0.25), ("sft", 0.125), ("base", 0.5)):
        (place / f"{name}.json").write_text(json.dumps({"greedy_rouge_l": value, "greedy_other": 1}))
    page = build_report(folder).read_text(encoding="utf-8")
    assert re.findall(r'data-label="likeness to the reference answers, greedy">(.*?)<', page) == [
        "0.5",
        "0.125",
        "0.25",
        "–",
    ]
    assert "it marks by chance" in page and "Not fit" in page
    (folder / "reward_model" / "gate.json").write_text("{}")
    assert "it to train against" not in build_report(folder).read_text(encoding="utf-8")


def test_any_part_may_be_missing_and_its_command_is_named(run: Path, tmp_path: Path) -> None:
    for part in ("feedback.jsonl", "ppo", "before_after.jsonl", "sft", "evaluation"):
        folder = write_run(tmp_path / part, steps=3)
        (folder / part).rename(tmp_path / f"{part} elsewhere")
        assert parsed(folder).elements, part
    (tmp_path / "young" / "sft").mkdir(parents=True)
    shutil.copy(run / "sft" / "metrics.jsonl", tmp_path / "young" / "sft")
    text = parsed(tmp_path / "young").text
    assert [c for c in ("evaluate", "train", "annotate", "train-reward") if f"{c} makes them" not in text] == []


def test_values_that_are_not_finite_are_counted_not_drawn(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", steps=4)
    path = folder / "ppo" / "text2grad" / "metrics.jsonl"
    rows = '{"step": 0, "kl": 1.0}\n{"step": 1, "kl": NaN}\n{"step": 2, "kl": Infinity}\n'
    path.write_text(rows, encoding="utf-8")
    samples = folder / "ppo" / "text2grad" / "samples.jsonl"
    written = [json.loads(line) for line in samples.read_text(encoding="utf-8").splitlines()]
    written[0]["value"][0] = float("nan")
    samples.write_text("\n".join(map(json.dumps, written)) + "\n", encoding="utf-8")
    seen = parsed(folder)
    assert "2 values are not finite" in seen.text
    assert seen.samples[0]["rows"]["value"][0] is None


def test_many_long_samples_are_thinned_evenly_and_counted(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", steps=2)
    row = sample("text2grad", 0, 0, random.Random(0))
    long = {**row, "tokens": ["x"] * 4000, "starts": [0] * 4000, "ends": [0] * 4000, "delta": [0.123] * 4000}
    path = folder / "ppo" / "text2grad" / "samples.jsonl"
    path.write_text("".join(json.dumps({**long, "step": step}) + "\n" for step in range(30)), encoding="utf-8")
    seen = parsed(folder)
    assert (folder / "report.html").stat().st_size < 3_000_000
    steps = [row["step"] for row in seen.samples if row["method"] == "text2grad"]
    assert 0 in steps and max(steps) > 20
    scalar = (folder / "ppo" / "scalar_ppo" / "samples.jsonl").read_text(encoding="utf-8")
    assert f"{30 + scalar.count(chr(10)) - len(seen.samples)} more samples" in seen.text


def test_a_report_is_never_written_through_a_link(tmp_path: Path) -> None:
    folder, elsewhere = write_run(tmp_path / "run"), tmp_path / "precious"
    elsewhere.write_text("mine")
    for target in (elsewhere, tmp_path / "nothing"):
        (folder / "report.html").unlink(missing_ok=True)
        (folder / "report.html").symlink_to(target)
        assert not build_report(folder).is_symlink()
    assert elsewhere.read_text() == "mine" and not (tmp_path / "nothing").exists()
    (tmp_path / "latest").symlink_to(folder)
    assert build_report(tmp_path / "latest").read_text().startswith("<!doctype html>")
    (folder / "report.html").unlink()
    (folder / "report.html").mkdir()
    with pytest.raises(UserError, match=r"report\.html"):
        build_report(folder)


def test_every_name_is_explained_and_a_constant_is_a_line(tmp_path: Path) -> None:
    write_metrics(tmp_path / "reward_model", [{"loss": 2.0, "label_loss": 1.0}, {"loss": 1.0, "label_loss": 0.5}])
    rows = [{"score": 0.5, "forced": 0.0, "kl_coefficient": 0.05, "clip_fraction": x} for x in (0.1, 0.2)]
    write_metrics(tmp_path / "ppo" / "text2grad", rows)
    page = build_report(tmp_path).read_text(encoding="utf-8")
    texts = dict(
        re.findall(r"<figcaption><b>(.*?)</b>(?: <code>.*?</code>)?(?: <span>(.*?)</span>)?</figcaption>", page)
    )
    titles = ["share of clipped tokens", "loss", "label loss"]
    assert list(texts) == titles and "clipping" in texts["share of clipped tokens"]
    assert "next-token" in texts["loss"] and "next-token" not in texts["label loss"]
    constants = re.findall(r"<dt>(.*?): <b>(.*?)</b></dt>", page.replace("&#39;", "'"))
    expected = [("critiques cut by the token limit", "0"), ("KL coefficient", "0.05"), ("critic's verdict", "0.5")]
    assert constants == expected and "Look out for: " in page


def write_pairs(folder: Path, scores: list[tuple[float, float]], measure: str = "rouge_l") -> None:
    folder.mkdir(exist_ok=True)
    rows = [
        {
            "id": f"remark-{number}",
            "prompt": [{"role": "user", "content": f"Describe a lamp of {number} cm."}],
            "answers": [
                {"name": "base", "response": "It is huge.", "scores": {measure: before}},
                {"name": "offline", "response": "It is small.", "scores": {measure: after}},
            ],
        }
        for number, (before, after) in enumerate(scores)
    ]
    (folder / "before_after.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.mark.parametrize(
    ("scores", "measure", "sentence"),
    [
        ([(0.1, 0.6)] * 5, "rouge_l", "On 5 held-out prompts offline is better than base: likeness"),
        ([(0.6, 0.1)] * 5, "rouge_l", "offline is worse than base"),
        ([(0.1, 0.6), (0.6, 0.1)] * 3, "rouge_l", "neither clearly better nor worse than base"),
        ([(0.0, 1.0)] * 4, "pass", "tests passed 0% → 100%."),
        ([(0.0, 1.0)] * 2, "pass", "2 held-out prompts are too few to compare offline with base"),
    ],
)
def test_the_page_opens_with_a_sentence_on_held_out_prompts(
    tmp_path: Path, scores: list[tuple[float, float]], measure: str, sentence: str
) -> None:
    write_pairs(tmp_path, scores, measure)
    assert sentence in outcome_line(tmp_path)


def outcome_line(folder: Path) -> str:
    page = build_report(folder).read_text(encoding="utf-8")
    return "".join(re.findall(r'<p class="outcome-line">(.*?)</p>', page)).replace("&#39;", "'")


@pytest.mark.parametrize(
    ("better", "sentence"),
    [
        (True, "On 5 held-out prompts the new model is better: likeness to people's corrections 0.31 → 0.78."),
        (False, "not better beyond chance: likeness to people's corrections 0.31 → 0.78. The old model was kept."),
        (None, "5 held-out prompts are too few to tell"),
    ],
)
def test_the_verdict_of_improve_is_the_sentence(tmp_path: Path, better: bool | None, sentence: str) -> None:
    write_pairs(tmp_path, [(0.1, 0.6)] * 5)
    note = {"better": better, "before": {"corrections": 0.31}, "after": {"corrections": 0.78}}
    (tmp_path / "improve.json").write_text(json.dumps(note), encoding="utf-8")
    assert sentence in outcome_line(tmp_path)


def test_warnings_come_first(tmp_path: Path) -> None:
    rows = [{"delta_sum": float((-1) ** (n // 2))} for n in range(40)]
    write_metrics(tmp_path / "ppo" / "mine", rows)
    place = tmp_path / "evaluation" / "demo"
    place.mkdir(parents=True)
    figures = {"greedy_pass": 0.5, "signs": ["mine is below scalar by <b>"]}
    (place / "mine.json").write_text(json.dumps(figures), encoding="utf-8")
    (tmp_path / "evaluation" / "reward_model.json").write_text('{"unmatched": 0.2}', encoding="utf-8")
    page = build_report(tmp_path).read_text(encoding="utf-8")
    warnings = re.findall(r'class="warning">▲ (.*?)</p>', page)
    assert [line.split(":")[0] for line in warnings[1:]] == ["mine", "mine is below scalar by &lt;b&gt;"]
    assert warnings[0].startswith("20.0% of the quotes of the reward model")


def test_the_evaluations_of_several_tasks_are_in_one_run_and_the_main_metrics_come_first(tmp_path: Path) -> None:
    for name in ("code/text2grad", "mbpp/text2grad", "mbpp/text2grad.answers", "reward_model", "a.full"):
        (tmp_path / "evaluation" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "evaluation" / f"{name}.json").write_text('{"greedy_pass": 0.5}')
    assert list(read_run(tmp_path).evaluation) == ["reward_model", "text2grad on code", "text2grad on mbpp"]
    names = ["entropy", "clip_fraction", "kl", "score", "heldout_pass@1", "kl_coefficient"]
    assert arrange(names, MAIN) == (
        ["heldout_pass@1", "score", "kl", "entropy"],
        ["clip_fraction", "kl_coefficient"],
    )


def test_only_settings_unlike_the_nearest_preset_are_listed(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", steps=2)
    (folder / "config.yaml").write_text("ppo: {steps: 40, lr: 0.1, kl: k1}\nsft: {lr: 0.5}\n", encoding="utf-8")
    (folder / "sft" / "derived.json").write_text(
        '{"settings": {"sft.lr": [0.5, "from the size"]}}', encoding="utf-8"
    )
    presets = [{"ppo": {"steps": 20, "lr": 0.2, "kl": "k1"}}, {"ppo": {"steps": 40, "lr": 0.2, "kl": "k1"}}]
    assert changed_settings(read_run(folder), presets) == [("ppo.lr", "0.1")]
    page = build_report(folder, presets=presets).read_text(encoding="utf-8")
    assert "Settings that differ from the preset (1)" in page
