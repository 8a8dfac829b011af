"""Programs with tests: KodCode (paper, section 4.3), and MBPP and HumanEval to measure on.

Whatever the source, `meta["tests"]` is one module in KodCode's shape: it imports from `solution` and defines
`test_...` functions.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable

from text2grad.feedback import Example, Message
from text2grad.tasks.base import Split, TaskSettings, in_split
from text2grad.tasks.loaders import Row, Shape, optional_text, read_examples, text_of

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)

Scorer = Callable[[Example, str], dict[str, float]]


class CodeTask:
    """Write a Python program. Scored by running its tests: the owner of a sandbox supplies the `scorer`."""

    name = "code"
    critic_prompt = "code"

    def __init__(self, settings: TaskSettings, scorer: Scorer | None = None) -> None:
        self._settings = settings
        self._scorer = scorer
        self._examples = read_examples(settings.data or "KodCode/KodCode-Light-RL-10K", SHAPES, settings.limit)

    def examples(self, split: Split) -> list[Example]:
        """Problems of one split, with the reference solution and `meta["tests"]`."""
        return in_split(self._examples, split, self._settings)

    def scores(self, example: Example, response: str) -> dict[str, float]:
        """What the `scorer` says; without one nothing can be said."""
        return self._scorer(example, response) if self._scorer else {}


def _kodcode(row: Row, fallback_id: str) -> Example:
    tests = text_of(row, "test", "test_code")
    entry_point, declaration = _entry_point(row)
    question = text_of(row, "question").rstrip()
    # The question often leaves the function's name open; the tests do not.
    if declaration:
        question += f"\n\nStart from this declaration: `{declaration}`"
    meta = {"question": text_of(row, "question"), "tests": tests, "entry_point": entry_point}
    return _example(
        optional_text(row, "question_id", "conversation_id") or fallback_id,
        question,
        optional_text(row, "solution"),
        meta,
    )


def _entry_point(row: Row) -> tuple[str, str]:
    """Name and declaration of the function the tests call, "" where the row does not say."""
    functions = row.get("test_info") or []
    first = functions[0] if isinstance(functions, list) and functions else {}
    if not isinstance(first, dict):
        raise ValueError("test_info is not a list of objects")
    return (
        optional_text(first, "function_name") or optional_text(row, "test_entry_point"),
        optional_text(first, "function_declaration"),
    )


def _mbpp(row: Row, fallback_id: str) -> Example:
    checks, solution = row["test_list"], text_of(row, "code")
    if not isinstance(checks, list) or not checks or not all(isinstance(check, str) for check in checks):
        raise ValueError("test_list is not a list of assertions")
    setup = "\n".join([*row.get("test_imports", []), optional_text(row, "test_setup_code")]).strip()
    parts = [_import_line(setup, solution), setup]
    for number, check in enumerate(checks, start=1):
        # Imported inside the test: some solutions are named test_..., and would be collected as tests.
        parts.append(_test_function(f"test_{number}", f"{_import_line(check, solution)}\n{check}"))
    question = text_of(row, "prompt", "text")
    # As in MBPP's own evaluation, one assertion shows the name and the arguments.
    content = f"{question}\n\nYour code must satisfy:\n{checks[0]}"
    meta = {"question": question, "tests": "\n".join(filter(None, parts))}
    return _example(f"mbpp-{row.get('task_id', fallback_id)}", content, solution, meta)


def _import_line(code: str, solution: str) -> str:
    """The import of those names that `code` uses and the solution defines; "" if there are none."""
    try:
        used = {node.id for node in ast.walk(_parsed(code)) if isinstance(node, ast.Name)}
        defined = {node.name for node in _parsed(solution).body if isinstance(node, _DEFINITIONS)}
    except SyntaxError as error:
        raise ValueError(f"code that Python cannot read: {error.msg}") from error
    names = sorted(used & defined)
    return f"from solution import {', '.join(names)}" if names else ""


def _parsed(code: str) -> ast.Module:
    with warnings.catch_warnings():
        # Published programs have invalid escapes such as "\\w" in them; that is not our user's business.
        warnings.simplefilter("ignore")
        return ast.parse(code)


def _humaneval(row: Row, fallback_id: str) -> Example:
    start, entry_point = text_of(row, "prompt"), text_of(row, "entry_point")
    tests = f"from solution import {entry_point}\n{text_of(row, 'test')}\n\n"
    tests += _test_function(f"test_{entry_point}", f"check({entry_point})")
    content = f"Complete this function. Answer with all of it.\n\n```python\n{start.rstrip()}\n```"
    meta = {"question": start, "tests": tests, "entry_point": entry_point}
    solution = start + text_of(row, "canonical_solution")
    return _example(str(row.get("task_id") or fallback_id), content, solution, meta)


def _test_function(name: str, body: str) -> str:
    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    return f"def {name}():\n{lines}\n"


def _example(id: str, content: str, reference: str, meta: dict[str, str]) -> Example:
    kept = {key: text for key, text in meta.items() if text}
    return Example(id=id, prompt=(Message(role="user", content=content),), reference=reference, meta=kept)


SHAPES = (
    Shape("HumanEval", frozenset({"prompt", "canonical_solution", "test", "entry_point"}), _humaneval),
    Shape("MBPP", frozenset({"code", "test_list"}), _mbpp),
    Shape("KodCode", frozenset({"question", "solution", "test"}), _kodcode),
    Shape("KodCode SFT", frozenset({"question", "solution", "test_code"}), _kodcode),
)
