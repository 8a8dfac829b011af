"""HumanEval, MBPP and EvalPlus: Python programming problems with tests.

`text2grad evaluate NAME --task text2grad_lab.benchmarks.programs:MBPP` measures a policy on one of
them. `meta["tests"]` is a module as in KodCode: it imports from `solution` and defines `test_...`.
"""

from __future__ import annotations

from collections.abc import Iterable

from text2grad.data.files import Row, optional_text, required_text
from text2grad.data.published import Shape, python_lines, read_examples, single_turn_example
from text2grad.errors import UserError
from text2grad.feedback import Example, Message
from text2grad.tasks.base import TaskSettings
from text2grad.tasks.library import parse_module
from text2grad_lab.benchmarks import Benchmark
from text2grad_lab.benchmarks.checks import as_test, check_module, import_line, names_defined, names_used
from text2grad_lab.benchmarks.evalplus import plus_module

HUMANEVAL_DATA, MBPP_DATA = "openai/openai_humaneval", "google-research-datasets/mbpp"
"""Names on the hub."""
MBPP_SPLITS = {"prompt": (1, 10), "test": (11, 510), "validation": (511, 600), "train": (601, 974)}
"""First and last number of MBPP's problems in each published split (Austin et al. 2021)."""


class _Programs(Benchmark):
    """Problems of `task.data`, by default of a hub data set."""

    critic_prompt = "code"
    data = ""

    def read_questions(self, settings: TaskSettings) -> list[Example]:
        """Return the problems of MBPP's test split, or all of other data sets."""
        if not (data := settings.data or self.data):
            raise UserError(
                f"{self.name} is not on the hub", "--task.data FILE.jsonl.gz, a release file of EvalPlus"
            )
        return in_mbpp_split(read_examples(data, SHAPES, split="test"), "test")[: settings.limit]


class HumanEval(_Programs):
    """HumanEval (Chen et al. 2021)."""

    name, data = "humaneval", HUMANEVAL_DATA


class MBPP(_Programs):
    """The test split of MBPP (Austin et al. 2021)."""

    name, data = "mbpp", MBPP_DATA


class HumanEvalPlus(_Programs):
    """HumanEval with EvalPlus's inputs; `task.data` is `HumanEvalPlus.jsonl.gz`."""

    name = "humaneval+"


class MBPPPlus(_Programs):
    """MBPP with EvalPlus's inputs; `task.data` is `MbppPlus.jsonl.gz`."""

    name = "mbpp+"


def in_mbpp_split(examples: Iterable[Example], split: str) -> list[Example]:
    """Remove the problems of MBPP's other splits, which are in the same file."""
    others = (range(first, last + 1) for name, (first, last) in MBPP_SPLITS.items() if name != split)
    ids = {f"mbpp-{number}" for numbers in others for number in numbers}
    return [example for example in examples if example.id not in ids]


def _mbpp(row: Row, fallback_id: str) -> Example:
    checks, solution = row["test_list"], python_lines(required_text(row, "code"))
    if not isinstance(checks, list) or not checks or not all(isinstance(check, str) for check in checks):
        raise ValueError("test_list is not a list of assertions")
    setup = "\n".join([*row.get("test_imports", []), optional_text(row, "test_setup_code")]).strip()
    parts = [import_line(setup, solution), setup]
    for number, check in enumerate(checks, start=1):
        # Imported inside the test: solutions named test_... would be collected as tests.
        parts.append(as_test(f"test_{number}", f"{import_line(check, solution)}\n{check}"))
    question = required_text(row, "prompt", "text")
    # As in MBPP's own evaluation, one assertion shows the name and the arguments.
    content = f"{question}\n\nYour code must satisfy:\n{checks[0]}"
    called = names_defined(solution) & names_used(parse_module(checks[0]))
    meta = {
        "question": question,
        "tests": "\n".join(filter(None, parts)),
        "entry_point": called.pop() if len(called) == 1 else "",
    }
    return single_turn_example(f"mbpp-{row.get('task_id', fallback_id)}", content, solution, meta)


def _humaneval(row: Row, fallback_id: str) -> Example:
    start, entry_point = required_text(row, "prompt"), required_text(row, "entry_point")
    tests = check_module(required_text(row, "test"), entry_point, start)
    return _completion(row, fallback_id, start, entry_point, tests)


def _completion(row: Row, fallback_id: str, start: str, entry_point: str, tests: str) -> Example:
    content = f"Complete this function. Answer with all of it.\n\n```python\n{start.rstrip()}\n```"
    meta = {"question": start, "tests": tests, "entry_point": entry_point, "completes": start}
    solution = start + required_text(row, "canonical_solution")
    return single_turn_example(str(row.get("task_id") or fallback_id), content, solution, meta)


def _plus(row: Row, fallback_id: str) -> Example:
    start, entry_point = required_text(row, "prompt"), required_text(row, "entry_point")
    tests = plus_module(row, start + required_text(row, "canonical_solution"))
    example = _completion(row, fallback_id, start, entry_point, tests)
    if not example.id.startswith("Mbpp/"):
        return example
    # MBPP's prompt is a docstring with an assertion at its end, not the start of a program.
    question, _, check = start.strip().strip('"').strip().partition("\nassert ")
    requirement = f"\n\nYour code must satisfy:\nassert {check.strip()}" if check else ""
    prompt = (Message(role="user", content=question.strip() + requirement),)
    return example.model_copy(update={"prompt": prompt, "meta": {**example.meta, "question": question.strip()}})


_PLUS_KEYS = frozenset({"prompt", "canonical_solution", "entry_point", "base_input", "plus_input"})
SHAPES = (
    Shape("EvalPlus", _PLUS_KEYS, _plus),
    Shape("HumanEval", frozenset({"prompt", "canonical_solution", "test", "entry_point"}), _humaneval),
    Shape("MBPP", frozenset({"code", "test_list"}), _mbpp),
)
