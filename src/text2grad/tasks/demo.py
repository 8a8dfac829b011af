"""The embedded task: KodCode-shaped problems from a seeded generator. No network, no data files.

A problem asks for a small Python function made of three *parts* (say: keep the even ones; square
each; return the sum). A *combination* is a family with its three parts. Held-out problems use
combinations that no training problem has, so a policy must put parts together that it never saw
together.

Supervised demonstrations are written by a simulated programmer who makes mistakes: each part has a
wrong version that looks right (`>` for "at least"), written at the part's `slip` rate. For some
parts the slip is more common than the truth, so imitation alone learns the mistake, greedy decoding
included. What is right is only told by the tests.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from text2grad.data.published import single_turn_example
from text2grad.feedback import Example
from text2grad.strict_yaml import parse_yaml
from text2grad.tasks.base import TaskSettings, refuse_shares

SLIPS = {"habit": 0.6, "rare": 0.15}
DEFAULT_DEMONSTRATIONS = 8192


@dataclass(frozen=True)
class Part:
    """One step of a program: how the question says it, how it is written, and how it is written
    wrong.

    `slip` is the share of demonstrations that use a wrong version.
    """

    name: str
    phrase: str
    code: str
    wrong: tuple[str, ...]
    slip: float


@dataclass(frozen=True)
class Family:
    """Programs of one shape: three slots of parts and how question, program and inputs are put
    together."""

    name: str
    question: str
    program: str
    slots: tuple[tuple[Part, ...], ...]


def read_families() -> tuple[Family, ...]:
    """The families of `demo.yaml`: lists, texts, loops."""

    def part(row: tuple[str, str, str, list[str], str]) -> Part:
        name, phrase, code, wrong, slip = row
        return Part(name, phrase, code, tuple(wrong), SLIPS[slip])

    rows = parse_yaml((resources.files("text2grad.tasks") / "demo.yaml").read_text(encoding="utf-8"))
    return tuple(
        Family(row["name"], row["question"], row["program"], tuple(tuple(map(part, slot)) for slot in row["slots"]))
        for row in rows
    )


FAMILIES = read_families()
LISTS, TEXTS, LOOPS = FAMILIES


@dataclass(frozen=True)
class Problem:
    """One combination: a family and a part for each of its slots."""

    family: Family
    parts: tuple[Part, ...]

    @property
    def combination(self) -> str:
        """The structure: family and parts. What training and held-out never share."""
        return "/".join((self.family.name, *(part.name for part in self.parts)))

    def question(self) -> str:
        """What the policy is asked."""
        return self.family.question.format(*(part.phrase for part in self.parts))

    def program(self, slips: Sequence[int | None] = (None, None, None)) -> str:
        """The program; `slips[i]` picks a wrong version of part i, None the right one."""
        pairs = zip(self.parts, slips, strict=True)
        return self.family.program.format(*(p.code if slip is None else p.wrong[slip] for p, slip in pairs))


def split_combinations(heldout_share: float, seed: int) -> tuple[list[Problem], list[Problem]]:
    """Training and held-out combinations: disjoint, and every part occurs in training."""
    train: list[Problem] = []
    heldout: list[Problem] = []
    for family in FAMILIES:
        combinations = [Problem(family, parts) for parts in itertools.product(*family.slots)]
        random.Random(f"{seed}/{family.name}").shuffle(combinations)
        cut = round(len(combinations) * heldout_share)
        heldout += combinations[:cut]
        train += combinations[cut:]
    return train, heldout


def problems(combinations: Sequence[Problem], count: int, rng: random.Random) -> list[Problem]:
    """`count` problems over the combinations, each used about equally often."""
    chosen: list[Problem] = []
    while len(chosen) < count:
        chosen += rng.sample(combinations, min(len(combinations), count - len(chosen)))
    return chosen


def make_tests(problem: Problem, rng: random.Random, count: int = 8) -> str:
    """KodCode-shaped test functions whose expected values come from running the reference
    program."""
    space: dict[str, Any] = {}
    exec(problem.program(), space)  # our own generated program, not a model's
    lines = ["from solution import f", ""]
    for index, argument in enumerate(_arguments(problem, rng, count)):
        lines += [f"def test_{index}():", f"    assert f({argument!r}) == {space['f'](argument)!r}", ""]
    return "\n".join(lines)


def _arguments(problem: Problem, rng: random.Random, count: int) -> list[Any]:
    if problem.family is LISTS:
        edges = list(range(2, 9))  # the constants of all parts and their neighbours
        pool = [*edges, *range(-9, 19)]
        return [[], edges, *([rng.choice(pool) for _ in range(rng.randint(3, 8))] for _ in range(count - 2))]
    if problem.family is TEXTS:
        pool_text = "abeiouXYZAE 1234 ?"
        words = ["".join(rng.choice(pool_text) for _ in range(rng.randint(6, 16))) for _ in range(count - 2)]
        return ["", "Hello World 42 aeiou!", *words]
    return [0, 1, *(rng.randint(5, 40) for _ in range(count - 2))]


class DemoTask:
    """Seeded problems with references and tests, flawed demonstrations, and a held-out split by
    combination.

    `examples("sft")` are demonstrations with slips; `"train"` and `"heldout"` carry the right
    program as reference and the tests in `meta["tests"]`, as KodCode does.
    """

    name = "demo"
    critic_prompt = "reward_model"

    def __init__(self, settings: TaskSettings) -> None:
        refuse_shares(settings)
        self.limit = settings.limit or DEFAULT_DEMONSTRATIONS
        self.seed = settings.seed
        train, heldout = split_combinations(settings.heldout_share, settings.seed)
        self.combinations = {"train": train, "heldout": heldout}

    def examples(self, split: str) -> list[Example]:
        """`train` and `heldout`: every problem once. `sft`: `task.limit` demonstrations of training
        problems.

        Equal seeds give equal examples.
        """
        rng = random.Random(f"{self.seed}/{split}")
        pool = self.combinations["heldout" if split == "heldout" else "train"]
        chosen = problems(pool, self.limit if split == "sft" else len(pool), rng)
        return [self._example(f"{split}-{index}", problem, split, rng) for index, problem in enumerate(chosen)]

    def _example(self, name: str, problem: Problem, split: str, rng: random.Random) -> Example:
        meta = {"combination": problem.combination, "entry_point": "f"}
        if split == "sft":
            parts = problem.parts
            slips = [rng.randrange(len(part.wrong)) if rng.random() < part.slip else None for part in parts]
            reference = problem.program(slips)
        else:
            reference, meta["tests"] = problem.program(), make_tests(problem, rng)
        return single_turn_example(name, problem.question(), reference, meta)

    def scores(self, example: Example, response: str) -> dict[str, float]:
        """Empty: a program is scored by running its tests, which the stage does."""
        return {}
