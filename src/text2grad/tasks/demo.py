"""The demo task: KodCode-like problems from a seeded generator, without network or data files.

A problem asks for a small Python function made of three *parts* (say: keep the even numbers; square
each; return the sum). A *combination* is a family with its three parts. Held-out problems use
combinations that no training problem has, so the policy must combine parts in new ways.

Supervised demonstrations come from a simulated programmer who makes mistakes: each part has a
plausible wrong version (`>` for "at least"), used at the part's `slip` rate. For some parts the
wrong version is the more common one, so imitation alone learns the mistake, even with greedy
decoding. Only the tests show which version is right.
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
from text2grad.tasks.base import TaskSettings, refuse_split_settings

SLIPS = {"habit": 0.6, "rare": 0.15}
DEFAULT_DEMONSTRATIONS = 8192


@dataclass(frozen=True)
class Part:
    """One step of a program: its phrase in the question, its code, and wrong versions of the code.

    `slip` is the share of demonstrations that use a wrong version.
    """

    name: str
    phrase: str
    code: str
    wrong: tuple[str, ...]
    slip: float


@dataclass(frozen=True)
class Family:
    """Programs of one shape: templates of question and program, and three slots of parts."""

    name: str
    question: str
    program: str
    slots: tuple[tuple[Part, ...], ...]


def read_families() -> tuple[Family, ...]:
    """Load the families of `demo.yaml`: lists, texts, loops."""

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
        """Names of family and parts; no combination is in both training and held-out problems."""
        return "/".join((self.family.name, *(part.name for part in self.parts)))

    def question(self) -> str:
        """Return the prompt of the problem."""
        return self.family.question.format(*(part.phrase for part in self.parts))

    def program(self, slips: Sequence[int | None] = (None, None, None)) -> str:
        """Return the program; `slips[i]` picks a wrong version of part i, None the right one."""
        pairs = zip(self.parts, slips, strict=True)
        return self.family.program.format(*(p.code if slip is None else p.wrong[slip] for p, slip in pairs))


def split_combinations(heldout_share: float, seed: int) -> tuple[list[Problem], list[Problem]]:
    """Return disjoint training and held-out combinations; training covers every part."""
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
    """Sample `count` problems that use all combinations about equally often."""
    sampled: list[Problem] = []
    while len(sampled) < count:
        sampled += rng.sample(combinations, min(len(combinations), count - len(sampled)))
    return sampled


def make_tests(problem: Problem, rng: random.Random) -> str:
    """Write KodCode-like test functions; the expected values come from the reference program."""
    namespace: dict[str, Any] = {}
    exec(problem.program(), namespace)  # our generated program, not a model's
    lines = ["from solution import f", ""]
    for index, argument in enumerate(_arguments(problem, rng)):
        lines += [f"def test_{index}():", f"    assert f({argument!r}) == {namespace['f'](argument)!r}", ""]
    return "\n".join(lines)


def _arguments(problem: Problem, rng: random.Random) -> list[Any]:
    """Return eight arguments for the program, edge cases first."""
    if problem.family is LISTS:
        edges = list(range(2, 9))  # the constants of all parts and their neighbours
        pool = [*edges, *range(-9, 19)]
        return [[], edges, *([rng.choice(pool) for _ in range(rng.randint(3, 8))] for _ in range(6))]
    if problem.family is TEXTS:
        alphabet = "abeiouXYZAE 1234 ?"
        words = ["".join(rng.choice(alphabet) for _ in range(rng.randint(6, 16))) for _ in range(6)]
        return ["", "Hello World 42 aeiou!", *words]
    return [0, 1, *(rng.randint(5, 40) for _ in range(6))]


class DemoTask:
    """Seeded problems with tests, flawed demonstrations, and a held-out split by combination.

    `examples("sft")` are demonstrations with slips. `"train"` and `"heldout"` have the right
    program as the reference and the tests in `meta["tests"]`, as KodCode does.
    """

    name = "demo"
    critic_prompt = "reward_model"

    def __init__(self, settings: TaskSettings) -> None:
        refuse_split_settings(settings)
        self.limit = settings.limit or DEFAULT_DEMONSTRATIONS
        self.seed = settings.seed
        train, heldout = split_combinations(settings.heldout_share, settings.seed)
        self.combinations = {"train": train, "heldout": heldout}

    def examples(self, split: str) -> list[Example]:
        """Return the examples of a split; equal seeds give equal examples.

        `train` and `heldout`: every problem once. `sft`: `task.limit` demonstrations of training
        problems.
        """
        rng = random.Random(f"{self.seed}/{split}")
        pool = self.combinations["heldout" if split == "heldout" else "train"]
        sampled = problems(pool, self.limit if split == "sft" else len(pool), rng)
        return [self._example(f"{split}-{index}", problem, split, rng) for index, problem in enumerate(sampled)]

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
        """Return no scores; the stage runs the tests instead."""
        return {}
