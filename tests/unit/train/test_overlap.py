"""Scoring while the critic works: it really does, what fails is raised, and no thread is left."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from text2grad.chat import EndpointSettings, OpenAIChat, ScriptedChat
from text2grad.critics.program import ProgramCritic
from text2grad.critics.prompted import PromptedCritic
from text2grad.durable.log import Stopwatch
from text2grad.errors import UserError
from text2grad.feedback import Overlap, Source, get_overlap
from text2grad.train.learner import critique_and_score

LONG = 30.0


class Able:
    """A critic that says whether it may work beside the policy."""

    source = Source(kind="llm")

    def __init__(self, overlap: Overlap) -> None:
        self.overlap = overlap

    def critique(self, examples: Sequence[Any], responses: Sequence[str]) -> list[Any]:
        return []


def critics_alive() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("critic")]


def test_scoring_begins_before_the_critique_has_ended() -> None:
    scoring, criticised = threading.Event(), threading.Event()

    def critique() -> str:
        assert scoring.wait(LONG), "scoring waits for the critique"
        criticised.set()
        return "said"

    def score() -> str:
        scoring.set()
        assert criticised.wait(LONG)
        return "scored"

    watch = Stopwatch()
    assert critique_and_score(critique, score, True, watch) == ("said", "scored")
    assert 0 < watch.seconds["seconds_critique_hidden"] <= watch.seconds["seconds_score"]
    assert critics_alive() == []


def test_without_overlap_one_comes_after_the_other() -> None:
    order: list[str] = []
    watch = Stopwatch()
    critique_and_score(partial(order.append, "critique"), partial(order.append, "score"), False, watch)
    assert order == ["critique", "score"]
    assert watch.seconds["seconds_critique_hidden"] == 0
    assert {"seconds_critique", "seconds_score"} <= set(watch.seconds)


@pytest.mark.parametrize("overlap", [True, False])
def test_what_fails_is_raised_as_it_is(overlap: bool) -> None:
    def fails(error: BaseException) -> None:
        raise error

    def nothing() -> None: ...

    with pytest.raises(UserError, match="the endpoint"):
        critique_and_score(partial(fails, UserError("the endpoint is down")), nothing, overlap, Stopwatch())
    with pytest.raises(KeyboardInterrupt):
        critique_and_score(partial(fails, KeyboardInterrupt()), nothing, overlap, Stopwatch())
    with pytest.raises(FloatingPointError):
        critique_and_score(nothing, partial(fails, FloatingPointError("nan")), overlap, Stopwatch())
    assert critics_alive() == []


def test_who_overlaps() -> None:
    prompted = partial(PromptedCritic, prompt="{{response}}", source=Source(kind="llm"))
    endpoint = prompted(OpenAIChat(EndpointSettings(model="m", base_url="http://localhost:1/v1")))
    critics = [endpoint, ProgramCritic(None), prompted(ScriptedChat([])), Able("never")]  # type: ignore[arg-type]
    assert [get_overlap(critic) == "helps" for critic in critics] == [True, True, False, False]
