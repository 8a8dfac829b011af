"""Mistakes in code of the user's own are one line with its module, its line and what is expected of
it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from text2grad.align import Aligned, CreditSettings, credit
from text2grad.critics.probes import ProbedCritic
from text2grad.critics.table import spec_of
from text2grad.errors import UserError
from text2grad.feedback import Critique, Example, Failure, Message, Source, Span, get_judgements
from text2grad.named import call_user_code
from text2grad.tasks.base import TaskSettings, load_task

EXAMPLE = Example(id="1", prompt=(Message(role="user", content="Why?"),))
STARTS, ENDS = np.array([0, 1]), np.array([1, 2])
ALIGNED = Aligned("ab", STARTS, ENDS, STARTS, ENDS)


class OneRaises:
    source = Source(kind="program")

    def critique(self, examples: Any, responses: Any) -> Any:
        return [{}["none"]]


class OneAsync(OneRaises):
    async def critique(self, examples: Any, responses: Any) -> Any:
        return []


class OneNone(OneRaises):
    def critique(self, examples: Any, responses: Any) -> Any:
        return None


class OneDict(OneRaises):
    def critique(self, examples: Any, responses: Any) -> Any:
        return [{"text": "good"}]


class OneShort(OneRaises):
    def critique(self, examples: Any) -> Any:
        return []


class OneMade(OneRaises):
    def __init__(self, settings: Any) -> None: ...


class BadTask:
    name = "bad"
    critic_prompt = "qa"

    def __init__(self, settings: TaskSettings) -> None:
        self.settings = settings

    def examples(self, split: str) -> Any:
        if split == "sft":
            raise KeyError("sft")
        return ["Why?"]

    def scores(self, example: Example, response: str) -> Any:
        return 1.0


class UnmadeTask(BadTask):
    def __init__(self) -> None: ...


def words(critique: Critique, aligned: Aligned, settings: CreditSettings) -> Any:
    return "many"


def raising(critique: Critique, aligned: Aligned, settings: CreditSettings) -> Any:
    return 1 / 0


async def later(critique: Critique, aligned: Aligned, settings: CreditSettings) -> Any:
    return np.zeros(2)


def asked(critic: Any) -> Callable[[], Any]:
    return lambda: get_judgements(critic, [EXAMPLE], ["So."])


def paid(scheme: str) -> Callable[[], Any]:
    return lambda: credit(Critique(text=""), ALIGNED, CreditSettings(scheme=f"{__name__}:{scheme}"))


def task() -> Any:
    return load_task(TaskSettings(name=f"{__name__}:BadTask"))


FAULTS: dict[str, Callable[[], Any]] = {
    "KeyError: 'none'": asked(OneRaises()),
    "KeyError": asked(ProbedCritic(OneRaises(), 0)),
    "OneAsync.critique of": asked(OneAsync()),
    "OneNone.critique returned NoneType": asked(OneNone()),
    "OneDict.critique returned list of dict": asked(OneDict()),
    "OneShort.critique of": asked(OneShort()),
    "OneMade of": lambda: spec_of(f"{__name__}:OneMade").make(None, SimpleNamespace()),
    "KeyError: 'sft'": lambda: task().examples("sft"),
    "BadTask.examples returned list of str": lambda: task().examples("train"),
    "BadTask.scores returned float": lambda: task().scores(EXAMPLE, "So."),
    "UnmadeTask of": lambda: load_task(TaskSettings(name=f"{__name__}:UnmadeTask")),
    "returned str": paid("words"),
    "ZeroDivisionError": paid("raising"),
    "later of": paid("later"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_errors_of_user_code_are_one_line(fault: str) -> None:
    with pytest.raises(UserError) as caught:
        FAULTS[fault]()
    assert fault in caught.value.problem and caught.value.cure and "\n" not in str(caught.value)
    assert __name__ in caught.value.problem or fault == "returned str"


def test_the_error_names_the_line_of_the_module(tmp_path: Path) -> None:
    lines, start = inspect.getsourcelines(OneRaises.critique)
    with pytest.raises(UserError, match=rf"{__name__}, line {start + len(lines) - 1}: "):
        get_judgements(OneRaises(), [EXAMPLE], ["So."])


def test_other_attributes_are_kept(tmp_path: Path) -> None:
    assert task().settings.name == f"{__name__}:BadTask" and not hasattr(task(), "environment")


def test_a_bug_of_the_package_keeps_its_traceback() -> None:
    with pytest.raises(AttributeError):
        call_user_code("", get_judgements, None, [EXAMPLE], ["So."])


def test_a_failure_is_passed_on() -> None:
    class Fails(OneRaises):
        def critique(self, examples: Any, responses: Any) -> Any:
            return (Failure(kind="unsupported", message="no"),)

    assert get_judgements(Fails(), [EXAMPLE], ["So."]) == [Failure(kind="unsupported", message="no")]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"spans": (Span(start=0, end=2, label=1, text="So"),)}, "does not read 'So' at [0, 2)"),
        ({"turn_scores": (1.0, 1.0)}, "verdicts on 2 turns, but the response has 1"),
    ],
)
def test_a_critique_of_another_text_is_a_failure_and_the_others_count(wrong: dict[str, Any], says: str) -> None:
    """For example offsets in the response without its leading space."""

    class Strips(OneRaises):
        def critique(self, examples: Any, responses: Any) -> Any:
            return [Critique(text="", score=1.0, **wrong), Critique(text="", score=1.0)]

    failed, other = get_judgements(Strips(), [EXAMPLE] * 2, [" So.", "So."])
    assert isinstance(failed, Failure) and says in failed.message and isinstance(other, Critique)
