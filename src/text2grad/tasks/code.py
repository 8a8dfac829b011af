"""Programs with tests: KodCode (paper, section 4.3), and MBPP and HumanEval to measure on.

Whatever the source, `meta["tests"]` is one module in KodCode's shape: it imports from `solution` and defines
`test_...` functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from text2grad.data.files import Row, optional_text, text_of
from text2grad.data.published import KODCODE, Shape, one_turn, python_lines, read_examples
from text2grad.errors import UserError
from text2grad.feedback import Example, Message
from text2grad.tasks.base import TaskSettings
from text2grad.tasks.benchmarks.evalplus import NAMES as PLUS_NAMES
from text2grad.tasks.benchmarks.evalplus import cached_file, plus_module
from text2grad.tasks.checks import as_test, check_module, import_line, names_defined, names_used, parsed
from text2grad.tasks.data_task import Benchmark, DataTask

DATA_FOLDERS = (Path("data"), Path("../shared/data"))
"""Folders searched for a benchmark's file before the hub, relative to the working directory."""

BENCHMARKS = {
    "humaneval": ("humaneval/HumanEval.jsonl", "openai/openai_humaneval"),
    "mbpp": ("mbpp/mbpp.jsonl", "google-research-datasets/mbpp"),
}
"""File in a data folder, and name on the hub."""

MBPP_SPLITS = {
    "prompt": range(1, 11),
    "test": range(11, 511),
    "validation": range(511, 601),
    "train": range(601, 975),
}
"""Numbers of MBPP's problems by published split."""


class CodeTask(DataTask):
    """Write a Python program; an example has the reference solution and `meta["tests"]`."""

    name = "code"
    critic_prompt = "code"

    def __init__(self, settings: TaskSettings) -> None:
        super().__init__(settings, "KodCode/KodCode-Light-RL-10K", SHAPES)

    def scores(self, example: Example, response: str) -> dict[str, float]:
        """Empty: a program is scored by running its tests, which the stage does."""
        return {}


class CodeBenchmark(Benchmark):
    """Published problems to measure on."""

    critic_prompt = "code"

    def read(self, settings: TaskSettings) -> list[Example]:
        """The problems of MBPP's test split, or all of HumanEval's."""
        self.name = settings.name
        data = settings.data or benchmark_data(settings.name)
        return of_mbpp_split(read_examples(data, SHAPES, None, split="test"), "test")[: settings.limit]


def of_mbpp_split(examples: Sequence[Example], split: str) -> list[Example]:
    """Problems without those of MBPP's other splits: its file holds all of them, by number (Austin et al. 2021)."""
    others = {f"mbpp-{number}" for name, numbers in MBPP_SPLITS.items() if name != split for number in numbers}
    return [each for each in examples if each.id not in others]


def benchmark_data(name: str) -> str:
    """Where the problems of `humaneval`, `mbpp`, `humaneval+` or `mbpp+` are found when no file is named.

    HumanEval and MBPP: in a folder of `DATA_FOLDERS`, else on the hub. EvalPlus: in the cache of its package.

    Raises:
        UserError: EvalPlus was never fetched here.
    """
    if name in PLUS_NAMES:
        if (cached := cached_file(name)) is None:
            raise UserError(
                f"{name}: no file in the cache of the evalplus package",
                f"give --task.data {PLUS_NAMES[name][0]}.jsonl.gz, or run evalplus once",
            )
        return str(cached)
    file, hub = BENCHMARKS[name]
    return next((str(folder / file) for folder in DATA_FOLDERS if (folder / file).is_file()), hub)


def _mbpp(row: Row, fallback_id: str) -> Example:
    checks, solution = row["test_list"], python_lines(text_of(row, "code"))
    if not isinstance(checks, list) or not checks or not all(isinstance(check, str) for check in checks):
        raise ValueError("test_list is not a list of assertions")
    setup = "\n".join([*row.get("test_imports", []), optional_text(row, "test_setup_code")]).strip()
    parts = [import_line(setup, solution), setup]
    for number, check in enumerate(checks, start=1):
        # Imported inside the test: some solutions are named test_..., and would be collected as tests.
        parts.append(as_test(f"test_{number}", f"{import_line(check, solution)}\n{check}"))
    question = text_of(row, "prompt", "text")
    # As in MBPP's own evaluation, one assertion shows the name and the arguments.
    content = f"{question}\n\nYour code must satisfy:\n{checks[0]}"
    called = names_defined(solution) & names_used(parsed(checks[0]))
    meta = {
        "question": question,
        "tests": "\n".join(filter(None, parts)),
        "entry_point": called.pop() if len(called) == 1 else "",
    }
    return one_turn(f"mbpp-{row.get('task_id', fallback_id)}", content, solution, meta)


def _humaneval(row: Row, fallback_id: str) -> Example:
    start, entry_point = text_of(row, "prompt"), text_of(row, "entry_point")
    tests = check_module(text_of(row, "test"), entry_point, start)
    return _completion(row, fallback_id, start, entry_point, tests)


def _completion(row: Row, fallback_id: str, start: str, entry_point: str, tests: str) -> Example:
    content = f"Complete this function. Answer with all of it.\n\n```python\n{start.rstrip()}\n```"
    meta = {"question": start, "tests": tests, "entry_point": entry_point, "completes": start}
    solution = start + text_of(row, "canonical_solution")
    return one_turn(str(row.get("task_id") or fallback_id), content, solution, meta)


def _plus(row: Row, fallback_id: str) -> Example:
    start, entry_point = text_of(row, "prompt"), text_of(row, "entry_point")
    tests = plus_module(row, start + text_of(row, "canonical_solution"))
    example = _completion(row, fallback_id, start, entry_point, tests)
    if not example.id.startswith("Mbpp/"):
        return example
    # MBPP's prompt is a docstring that ends with an assertion, and no beginning of a program.
    question, _, check = start.strip().strip('"').strip().partition("\nassert ")
    shown = f"\n\nYour code must satisfy:\nassert {check.strip()}" if check else ""
    prompt = (Message(role="user", content=question.strip() + shown),)
    return example.model_copy(update={"prompt": prompt, "meta": {**example.meta, "question": question.strip()}})


SHAPES = (
    Shape(
        "EvalPlus", frozenset({"prompt", "canonical_solution", "entry_point", "base_input", "plus_input"}), _plus
    ),
    Shape("HumanEval", frozenset({"prompt", "canonical_solution", "test", "entry_point"}), _humaneval),
    Shape("MBPP", frozenset({"code", "test_list"}), _mbpp),
    *KODCODE,
)
