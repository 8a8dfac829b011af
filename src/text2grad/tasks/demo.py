"""The embedded task: KodCode-shaped problems from a seeded generator. No network, no data files.

A problem asks for a small Python function made of three *parts* (say: keep the even ones; square each; return
the sum). A *combination* is a family with its three parts. Held-out problems use
combinations that no training problem has, so a policy must put parts together that it never saw together.

Supervised demonstrations are written by a simulated programmer who makes mistakes: each part has a wrong
version that looks right (`>` for "at least"), written at the part's `slip` rate. For some parts the slip is
more common than the truth, so imitation alone learns the mistake, greedy decoding included. What is right is
only told by the tests.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from text2grad.feedback import Example
from text2grad.tasks.base import TaskSettings, refuse_shares
from text2grad.tasks.loaders import one_turn

HABIT, RARE = 0.6, 0.15
DEFAULT_DEMONSTRATIONS = 8192


@dataclass(frozen=True)
class Part:
    """One step of a program: how the question says it, how it is written, and how it is written wrong.

    `slip` is the share of demonstrations that use a wrong version.
    """

    name: str
    phrase: str
    code: str
    wrong: tuple[str, ...]
    slip: float


@dataclass(frozen=True)
class Family:
    """Programs of one shape: three slots of parts and how question, program and inputs are put together."""

    name: str
    question: str
    program: str
    slots: tuple[tuple[Part, ...], tuple[Part, ...], tuple[Part, ...]]


LISTS = Family(
    "list",
    "Write f(xs): keep the numbers that are {0}, {1}, and return {2}.",
    "def f(xs):\n    ys = [x for x in xs if {0}]\n    zs = [{1} for y in ys]\n    return {2}\n",
    (
        (
            Part("even", "even", "x % 2 == 0", ("x % 2 == 1",), RARE),
            Part("odd", "odd", "x % 2 == 1", ("x % 2 == 0",), RARE),
            Part("positive", "positive", "x > 0", ("x >= 0", "x < 0"), RARE),
            Part("at_least", "at least 3", "x >= 3", ("x > 3",), HABIT),
            Part("above", "greater than 5", "x > 5", ("x >= 5", "x < 5"), RARE),
            Part("multiple", "multiples of 4", "x % 4 == 0", ("x // 4 == 0", "x % 4 == 1"), RARE),
        ),
        (
            Part("double", "double each", "y * 2", ("y + 2",), RARE),
            Part("square", "square each", "y * y", ("y * 2",), HABIT),
            Part("add", "add 7 to each", "y + 7", ("y * 7",), RARE),
            Part("times", "multiply each by 6", "y * 6", ("y + 6",), RARE),
            Part("negate", "negate each", "-y", ("abs(y)",), RARE),
        ),
        (
            Part("sum", "their sum", "sum(zs)", ("len(zs)",), RARE),
            Part("count", "how many there are", "len(zs)", ("sum(zs)",), RARE),
            Part("largest", "the largest or 0", "max(zs, default=0)", ("min(zs, default=0)",), RARE),
            Part("ascending", "them in order", "sorted(zs)", ("zs",), HABIT),
            Part("distinct", "how many differ", "len(set(zs))", ("len(zs)",), HABIT),
        ),
    ),
)

TEXTS = Family(
    "text",
    "Write f(s): keep the characters that are {0}, {1}, and return {2}.",
    "def f(s):\n    cs = [c for c in s if {0}]\n    ds = [{1} for c in cs]\n    return {2}\n",
    (
        (
            Part("vowels", "vowels", "c in 'aeiou'", ("c not in 'aeiou'",), RARE),
            Part("digits", "digits", "c.isdigit()", ("c.isalpha()",), RARE),
            Part("letters", "letters", "c.isalpha()", ("c.isalnum()",), HABIT),
            Part("upper", "upper case", "c.isupper()", ("c.islower()",), RARE),
            Part("nonspace", "not spaces", "c != ' '", ("c == ' '",), RARE),
        ),
        (
            Part("twice", "write each twice", "c * 2", ("c + '2'",), RARE),
            Part("capital", "make each upper case", "c.upper()", ("c.lower()",), RARE),
            Part("small", "make each lower case", "c.lower()", ("c.upper()",), RARE),
            Part("swap", "swap the case of each", "c.swapcase()", ("c.upper()",), HABIT),
            Part("quote", "put a star after each", "c + '*'", ("'*' + c",), HABIT),
        ),
        (
            Part("list", "the list", "ds", ("cs",), RARE),
            Part("count", "how many there are", "len(ds)", ("len(s)",), HABIT),
            Part("backwards", "them in reverse", "ds[::-1]", ("ds[:-1]",), RARE),
            Part("ascending", "them in order", "sorted(ds)", ("ds",), HABIT),
            Part("first", "the first 3", "ds[:3]", ("ds[3:]",), RARE),
        ),
    ),
)

LOOPS = Family(
    "loop",
    "Write f(n): for i {0}, if i is {1}, {2}; return the total.",
    "def f(n):\n    total = 0\n    for i in {0}:\n        if {1}:\n            total {2}\n    return total\n",
    (
        (
            Part("through", "from 1 through n", "range(1, n + 1)", ("range(1, n)",), HABIT),
            Part("below", "from 0 below n", "range(n)", ("range(n + 1)",), RARE),
            Part("after", "from 4 through n", "range(4, n + 1)", ("range(4, n)",), RARE),
            Part("steps", "from 0 below n by 3", "range(0, n, 3)", ("range(n, 3)",), RARE),
            Part("down", "from n down to 1", "range(n, 0, -1)", ("range(n, 1, -1)",), HABIT),
        ),
        (
            Part("even", "even", "i % 2 == 0", ("i % 2 == 1",), RARE),
            Part("odd", "odd", "i % 2 == 1", ("i % 2 == 0",), RARE),
            Part("at_least", "at least 3", "i >= 3", ("i > 3",), HABIT),
            Part("multiple", "a multiple of 4", "i % 4 == 0", ("i // 4 == 0", "i % 4 == 1"), RARE),
        ),
        (
            Part("add", "add i", "+= i", ("+= 1",), RARE),
            Part("square", "add its square", "+= i * i", ("+= i * 2",), HABIT),
            Part("count", "count it", "+= 1", ("+= i",), RARE),
            Part("times", "add 6 times i", "+= 6 * i", ("+= 6 + i",), RARE),
            Part("minus", "subtract i", "-= i", ("+= i",), RARE),
        ),
    ),
)


FAMILIES = (LISTS, TEXTS, LOOPS)


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
    """KodCode-shaped test functions whose expected values come from running the reference program."""
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
    """Seeded problems with references and tests, flawed demonstrations, and a held-out split by combination.

    `examples("sft")` are demonstrations with slips; `"train"` and `"heldout"` carry the right program as
    reference and the tests in `meta["tests"]`, as KodCode does.
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
        """`train` and `heldout`: every problem once. `sft`: `task.limit` demonstrations of training problems.

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
        return one_turn(name, problem.question(), reference, meta)

    def scores(self, example: Example, response: str) -> dict[str, float]:
        """Nothing can be said without running the tests; the stage that owns a runner does that."""
        return {}
