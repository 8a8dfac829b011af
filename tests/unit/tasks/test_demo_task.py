"""The embedded task: an honest split, right references, tests that tell wrong programs, slips at
their rates."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

import pytest

from text2grad.feedback import Example
from text2grad.sandbox import Runner
from text2grad.tasks.base import TaskSettings
from text2grad.tasks.demo import DEFAULT_DEMONSTRATIONS, FAMILIES, DemoTask, Part, Problem, make_tests
from text2grad.tasks.demo import problems as draw

SPLITS = ("sft", "train", "heldout")


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner() as made:
        yield made


def task(seed: int = 0, limit: int | None = 3000) -> DemoTask:
    return DemoTask(TaskSettings(name="demo", seed=seed, limit=limit))


def combinations(examples: list[Example]) -> set[str]:
    return {example.meta["combination"] for example in examples}


@pytest.mark.parametrize("seed", [0, 7])
def test_heldout_problems_are_new_and_their_parts_are_not(seed: int) -> None:
    made = task(seed)
    sft, train, heldout = (made.examples(split) for split in SPLITS)
    assert len(combinations(heldout)) == 75 and combinations(sft) == combinations(train)
    assert not combinations(heldout) & combinations(train)
    assert not {e.prompt[0].content for e in heldout} & {e.prompt[0].content for e in sft + train}
    assert not {e.reference for e in heldout} & {e.reference for e in train}
    for position in (1, 2, 3):
        trained, held = (
            {(c.split("/")[0], c.split("/")[position]) for c in combinations(examples)}
            for examples in (sft + train, heldout)
        )
        assert held <= trained
        assert trained == {(family.name, part.name) for family in FAMILIES for part in family.slots[position - 1]}


def test_parts_are_distinct_so_that_a_combination_is_one() -> None:
    for family in FAMILIES:
        for slot in family.slots:
            assert len({part.name for part in slot}) == len({part.code for part in slot}) == len(slot)
            assert all(part.code not in part.wrong for part in slot)


def test_every_problem_stands_once_and_demonstrations_repeat_them() -> None:
    made = task(limit=None)
    assert len(made.examples("sft")) == DEFAULT_DEMONSTRATIONS == 8192
    for split, count in (("train", 300), ("heldout", 75)):
        assert len(made.examples(split)) == len(combinations(made.examples(split))) == count


def test_seeds_decide_the_examples() -> None:
    for split in SPLITS:
        assert task(5, 200).examples(split) == task(5, 200).examples(split)
    first, second = (combinations(task(seed).examples("heldout")) for seed in (0, 1))
    assert len(first & second) < len(first) / 2
    assert task(0).examples("train")[:20] != task(1).examples("train")[:20]


def test_ids_are_unique_and_only_problems_carry_tests() -> None:
    made = task(limit=50)
    examples = {split: made.examples(split) for split in SPLITS}
    ids = [example.id for split in SPLITS for example in examples[split]]
    assert len(set(ids)) == len(ids) and ids[0] == "sft-0"
    assert all("tests" not in example.meta for example in examples["sft"])
    for example in examples["train"] + examples["heldout"]:
        assert example.meta["tests"].startswith("from solution import f\n")
        assert example.meta["entry_point"] == "f"
    assert made.scores(examples["train"][0], "def f(x): return x") == {}, "no score without running the tests"


def test_references_pass_their_tests(runner: Runner) -> None:
    made = task(limit=150)
    for example in made.examples("train") + made.examples("heldout")[:100]:
        verdict = runner.run(example.reference, example.meta["tests"])
        assert verdict.passed, (example.id, verdict)
        assert len(verdict.results) == 8


def wrong_versions(seed: int) -> Iterator[tuple[Problem, str, str]]:
    """Every single slip of one problem per part and family: (problem, wrong program, tests)."""
    import random

    rng = random.Random(seed)
    everything = [Problem(family, parts) for family in FAMILIES for parts in itertools.product(*family.slots)]
    for problem in draw(everything, 60, rng):
        tests = make_tests(problem, rng)
        for position, part in enumerate(problem.parts):
            for slip in range(len(part.wrong)):
                slips: list[int | None] = [None, None, None]
                slips[position] = slip
                yield problem, problem.program(slips), tests


def test_wrong_versions_fail_their_tests(runner: Runner) -> None:
    verdicts = [runner.run(program, tests) for _, program, tests in wrong_versions(3)]
    assert len(verdicts) > 180
    assert {verdict.outcome for verdict in verdicts} <= {"passed", "failed", "broken"}
    assert sum(not verdict.passed for verdict in verdicts) / len(verdicts) >= 0.85


def slips_in(example: Example, parts: dict[str, Problem]) -> list[tuple[Part, bool]]:
    """For each part of a demonstration: whether it was written wrong, read off the program's
    text."""
    problem = parts[example.id]
    choices = [[None, *range(len(part.wrong))] for part in problem.parts]
    found = [slips for slips in itertools.product(*choices) if problem.program(slips) == example.reference]
    assert found, example.id
    return [(part, slip is not None) for part, slip in zip(problem.parts, found[0], strict=True)]


def parsed(example: Example) -> Problem:
    """The problem behind a demonstration."""
    family_name, *names = example.meta["combination"].split("/")
    family = next(family for family in FAMILIES if family.name == family_name)
    parts = tuple(
        next(part for part in slot if part.name == name) for slot, name in zip(family.slots, names, strict=True)
    )
    return Problem(family, parts)


def test_demonstrations_slip_at_the_stated_rates() -> None:
    demonstrations = task(limit=3000).examples("sft")
    parts = {example.id: parsed(example) for example in demonstrations}
    written: Counter[float] = Counter()
    wrong: Counter[float] = Counter()
    for example in demonstrations:
        for part, slipped in slips_in(example, parts):
            written[part.slip] += 1
            wrong[part.slip] += slipped
    assert sorted(written) == [0.15, 0.6]
    for rate, count in written.items():
        deviation = (rate * (1 - rate) / count) ** 0.5
        assert abs(wrong[rate] / count - rate) < 5 * deviation + 0.01  # a few wrong versions read like right ones
