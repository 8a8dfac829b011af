"""The page of a run in a real browser: open, search, filter, change the signal, go by keyboard,
follow a run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from browser_pages import Server, serving, until
from synthetic_run import write_run
from text2grad.page.report import build_report
from text2grad.page.view import ViewPage


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("view") / "run", steps=20)


@pytest.fixture(scope="module")
def server(run: Path) -> Iterator[Server]:
    with serving(partial(ViewPage, run)) as started:
        yield started


@pytest.fixture(params=["served", "file"])
def page(request: pytest.FixtureRequest, tab: Any, server: Server, run: Path) -> Any:
    """The same page from the server and as one file."""
    tab.goto(server.url if request.param == "served" else build_report(run).as_uri())
    tab.locator("#sample h3").wait_for()
    return tab


def found(page: Any) -> tuple[int, int]:
    first, _, rest = page.locator("#found").inner_text().partition(" of ")
    return int(first), int(rest.split()[0])


def test_search_filters_and_the_address(page: Any) -> None:
    every = found(page)[1]
    assert found(page) == (every, every)
    page.get_by_text("filter", exact=True).click()
    page.get_by_role("checkbox", name="failed critique").check()
    failed, _ = found(page)
    assert 0 < failed < every
    until(page, "document.getElementById('sample').textContent.includes('No critique')")
    page.get_by_role("button", name="clear").click()
    until(page, f"document.getElementById('found').textContent.startsWith('{every} of')")
    page.get_by_label("search").fill("problem-005-3")
    until(page, "document.getElementById('found').textContent.startsWith('2 of')")
    page.get_by_label("colour").select_option("kl")
    page.locator("#list").focus()
    page.keyboard.press("End")
    until(page, "document.querySelector('#sample h3').textContent.includes('scalar_ppo')")
    page.locator(".talk").focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    readout = page.locator(".readout").inner_text()
    assert readout.startswith("3/") and "KL" in readout and "advantage" in readout
    page.reload()
    until(page, "document.querySelector('.readout')?.textContent.startsWith('3/')")
    assert page.locator(".readout").inner_text() == readout and found(page)[0] == 2
    assert page.get_by_label("colour").input_value() == "kl"


def test_a_pointer_that_rests_chooses_no_token(page: Any) -> None:
    """The page moves under it when it scrolls, or is laid out anew; the keys go on from the token
    chosen."""
    words, readout = page.locator(".talk .tok"), page.locator(".readout")
    words.nth(4).hover()
    assert readout.inner_text().startswith("5/")
    page.locator(".talk").focus()
    page.keyboard.press("Home")
    for scrolled in (300, -300):  # away from the words and back to them
        page.mouse.wheel(0, scrolled)
        until(page, f"(document.querySelector('.talk:hover') === null) === {str(scrolled > 0).lower()}")
        assert readout.inner_text().startswith("1/")


STRENGTHS = "[...document.querySelectorAll('.talk .tok')].map((tok) => tok.style.getPropertyValue('--strength'))"


def test_a_signal_colours_every_token_and_clauses_light_up_with_spans(page: Any) -> None:
    before = page.evaluate(STRENGTHS)
    page.get_by_label("colour").select_option("logp")
    assert len(before) > 10 and page.evaluate(STRENGTHS) != before
    assert page.locator("#signal-words").inner_text().startswith("log-probability: ")
    page.get_by_text("filter", exact=True).click()
    page.get_by_label("marked poor").check()
    page.locator("#sample .spans li").first.hover()
    linked = page.locator("#sample .linked").all_inner_texts()
    assert any("for x in items:" in text for text in linked) and len(linked) > 1


def test_there_are_few_tab_stops(page: Any) -> None:
    page.evaluate("document.querySelectorAll('details').forEach((fold) => (fold.open = false))")
    page.locator("nav a").first.focus()
    stops = 0
    while stops < 60 and page.evaluate("!document.activeElement.closest('#sample')"):
        page.keyboard.press("Tab")
        stops += 1
    assert stops < 25
    page.locator("#list").focus()
    facts = "document.querySelector('#sample').textContent"
    before = page.evaluate(facts)
    page.keyboard.press("ArrowDown")
    until(page, f"(before) => {facts} !== before", arg=before)


def test_a_run_is_followed_while_it_trains(tab: Any, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=5)
    with serving(partial(ViewPage, run)) as server:
        tab.goto(server.url)
        tab.locator("#sample h3").wait_for()
        heading, every = tab.locator("#sample h3").inner_text(), found(tab)[1]
        samples, metrics = (run / "ppo/text2grad" / name for name in ("samples.jsonl", "metrics.jsonl"))
        line = json.loads(samples.read_text(encoding="utf-8").splitlines()[0])
        with samples.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**line, "step": 77, "id": "new"}) + '\n{"half')
        with metrics.open("a", encoding="utf-8") as file:
            file.write('{"step": 77, "score": 0.123}\n{"ste')
        until(tab, f"document.getElementById('found').textContent === '{every + 1} of {every + 1}'")
        until(tab, "document.getElementById('curves').textContent.includes('0.123')")
        assert tab.locator("#sample h3").inner_text() == heading


def test_one_prompt_is_followed_over_steps(tab: Any, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=5)
    samples = run / "ppo/text2grad/samples.jsonl"
    rows = [json.loads(line) for line in samples.read_text(encoding="utf-8").splitlines()]
    texts = [{**row, "id": "probe", "response": f"It is due on day {row['step']}.", "spans": []} for row in rows]
    samples.write_text("".join(json.dumps(row) + "\n" for row in texts), encoding="utf-8")
    tab.goto(build_report(run).as_uri())
    tab.locator("#sample h3").wait_for()
    tab.get_by_text("This prompt over 2 steps").click()
    tab.locator(".steps-of li").nth(1).wait_for()
    assert tab.locator(".versions del").inner_text() == "0" and tab.locator(".versions ins").inner_text() == "5"
    tab.locator(".steps-of").get_by_role("button", name="step 5").click()
    until(tab, "document.querySelector('#sample h3').textContent.includes('step 5')")
    assert tab.locator(".steps-of li[aria-current=true]").inner_text().startswith("step 5")  # it stays open
    tab.reload()
    tab.locator(".steps-of li").nth(1).wait_for()
    tab.get_by_role("button", name="list only this prompt").click()
    assert found(tab)[0] == len(rows)


def test_the_fixed_prompts_come_first_and_old_runs_offer_no_new_signal(tab: Any, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=5)
    samples = run / "ppo/text2grad/samples.jsonl"
    rows = [json.loads(line) for line in samples.read_text(encoding="utf-8").splitlines()]
    tab.goto(build_report(run).as_uri())
    tab.locator("#sample h3").wait_for()
    offered = "[...document.querySelector('[name=by]').options].map((option) => option.value)"
    assert not {"ratio", "learned", "logp_change"} & set(tab.evaluate(offered))
    assert tab.evaluate("document.querySelector('[name=probe]').closest('label').hidden")
    new = {**rows[0], "probe": True, "id": "the probe", "logp_change": [0.5]}
    probe = [{**new, "step": step, "response": f"Step {step}."} for step in (0, 5)]
    samples.write_text("".join(json.dumps(row) + "\n" for row in [*rows, *probe]), encoding="utf-8")
    tab.goto(build_report(run).as_uri())
    tab.locator("#sample h3").wait_for()
    assert "logp_change" in tab.evaluate(offered)
    tab.get_by_text("filter", exact=True).click()
    assert tab.locator("[name=prompt] option").nth(1).inner_text().startswith("probe: Write `total(items)`")
    tab.get_by_label("probe prompts").check()
    assert found(tab)[0] == 2
    tab.locator(".steps-of ins").wait_for()  # open without a click
    assert tab.locator(".steps-of del").inner_text() == "0"


def test_before_and_after_is_searched_and_the_address_keeps_it(page: Any) -> None:
    pairs = page.locator("#before-after")
    pairs.get_by_label("show").select_option("better")
    until(page, "document.getElementById('pairs-found').textContent.endsWith(' of 6 prompts')")
    assert "✗ → ✓" in pairs.locator("#pair-list").inner_text()
    pairs.get_by_label("to").select_option("scalar PPO")
    pairs.get_by_label("show").select_option("")
    pairs.get_by_label("find").fill("heldout-3")
    assert pairs.locator("#pairs-found").inner_text() == "1 of 6 prompts"
    assert pairs.locator(".answer h4").all_inner_texts() == ["SFT", "scalar PPO", "text2grad"]
    assert pairs.locator("ins").count() and pairs.locator("del").count()
    page.reload()
    page.locator("#pair h3").wait_for()
    assert pairs.get_by_label("to").input_value() == "scalar PPO"
    assert pairs.locator("#pairs-found").inner_text() == "1 of 6 prompts"


def test_runs_are_laid_over_each_other(tab: Any, run: Path, tmp_path: Path) -> None:
    other = write_run(tmp_path / "other", steps=8, seed=1)
    with serving(partial(ViewPage, run, other)) as server:
        tab.goto(server.url)
        tab.locator("#sample h3").wait_for()
        chart = tab.locator("#curves figure", has_text="wrong_sign_rate").first
        chart.locator("svg").press("Home")
        reading = chart.locator("output").inner_text()
        assert "run text2grad" in reading and "other text2grad" in reading
        assert chart.locator(".watch").is_visible()
        methods = tab.locator("[name=method] option").all_text_contents()
        assert methods == ["all", "run text2grad", "run scalar_ppo", "other text2grad", "other scalar_ppo"]


PHONE = {"width": 390, "height": 800}
FEEDBACK = ["desk lamp", "oak table", "wool rug", "coffee mug"]


def improved(folder: Path) -> Path:
    """Write the folder of a run of `improve`: answers before and after, no samples."""
    rows = [
        {
            "id": f"remark-{number:012x}",
            "prompt": [{"role": "user", "content": f"Write a shop text. Product: {product}."}],
            "answers": [
                {"name": "SFT", "response": "It is sturdy.", "scores": {"rouge_l": 0.4}},
                {"name": "base", "response": f"Only 9 euros! A {product}.", "scores": {"rouge_l": 0.1}},
                {"name": "offline", "response": f"This is a {product}.", "scores": {"rouge_l": 0.3 + number / 10}},
            ],
        }
        for number, product in enumerate(FEEDBACK)
    ]
    for name, value in (("base", 0.1), ("offline", 0.5)):
        file = folder / "evaluation" / "qa-questions" / f"{name}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"prompts": 4, "greedy_rouge_l": value}), encoding="utf-8")
    for stage in ("sft", "ppo/offline"):
        (folder / stage).mkdir(parents=True)
        losses = "".join(f'{{"step": {step}, "loss": {9 - step}}}\n' for step in range(8))
        (folder / stage / "metrics.jsonl").write_text(losses, encoding="utf-8")
    (folder / "before_after.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    note = {"better": True, "before": {"corrections": 0.31}, "after": {"corrections": 0.78}}
    (folder / "improve.json").write_text(json.dumps(note), encoding="utf-8")
    return folder


@pytest.fixture(params=["served", "file"])
def improved_page(request: pytest.FixtureRequest, tab: Any, tmp_path: Path) -> Iterator[Any]:
    run = improved(tmp_path / "improve")
    with serving(partial(ViewPage, run)) as server:
        tab.goto(server.url if request.param == "served" else build_report(run).as_uri())
        tab.locator("#pair h3").wait_for()
        yield tab


def test_the_page_opens_with_the_outcome_then_three_changes_then_the_table(improved_page: Any) -> None:
    text = improved_page.locator("#results").inner_text()
    sentence = "On 4 held-out prompts the new model is better: likeness to people's corrections 0.31 → 0.78."
    assert text.index(sentence) < text.index("The 3 largest changes") < text.index("The loss went from")
    changes = improved_page.locator(".change")
    assert changes.locator(".change-prompt").all_inner_texts() == ["… coffee mug.", "… wool rug.", "… oak table."]
    first = changes.first
    assert first.locator("h4").all_inner_texts() == ["before: base", "after: offline"]
    assert first.locator("del").first.inner_text() == "Only 9"
    assert first.locator("ins").first.inner_text() == "This"


def test_no_id_names_a_prompt_and_an_entry_shows_the_answer(improved_page: Any) -> None:
    row = improved_page.locator("#pair-list [role=option]").first.inner_text()
    assert row.splitlines() == ["… desk lamp.", "This is a desk lamp.", "0.1 → 0.3"]
    assert "remark-" not in improved_page.locator("#pair h3").inner_text()
    assert "remark-" not in improved_page.locator("#results").inner_text()


def test_the_box_of_samples_collapses_without_samples(improved_page: Any) -> None:
    assert "No samples yet" in improved_page.locator("#samples").inner_text()
    assert improved_page.locator("#samples").bounding_box()["height"] < 150


def test_on_a_phone_controls_fold_and_tables_are_cards(improved_page: Any) -> None:
    improved_page.set_viewport_size(PHONE)
    improved_page.reload()
    improved_page.locator("#pair h3").wait_for()
    assert not improved_page.locator("#pairs").is_visible()
    improved_page.get_by_text("Search and filter").click()
    assert improved_page.get_by_label("find").is_visible()
    training = improved_page.locator(".policies td[data-label=training]", has_text="loss went").first
    assert training.bounding_box()["width"] > 300 and training.bounding_box()["height"] < 60
    assert not improved_page.locator(".policies thead").is_visible()


def test_runs_of_different_lengths_share_the_axis_by_their_share(tab: Any, tmp_path: Path) -> None:
    long, short = write_run(tmp_path / "long", steps=40), write_run(tmp_path / "short", steps=8)
    tab.goto(build_report(long, short).as_uri())
    curves = tab.locator("#curves")
    assert "the share of each run" in curves.inner_text()
    chart = curves.locator("figure", has_text="distance from the starting policy").first
    svg = chart.locator("svg")
    ends = svg.evaluate(
        "svg => [...svg.querySelectorAll('path')].map((p) => Math.round(p.getBBox().x + p.getBBox().width))"
    )
    assert ends == [276] * 4
    svg.press("End")
    reading = chart.locator("output").inner_text()
    assert "(step 39)" in reading and "(step 7)" in reading


def test_samples_are_named_by_their_prompts_and_charts_in_words(page: Any) -> None:
    title, answer, _ = page.locator("#list [role=option]").first.inner_text().splitlines()
    assert title.startswith("Write `total(items)`") and answer.startswith("def total")
    assert page.locator("#sample h3").inner_text().startswith("Write `total(items)`")
    assert "reward of an answer" in page.locator("#curves").inner_text()
    assert page.locator("#curves figcaption b", has_text="_").count() == 0
