"""Examples, and the records of feedback on answers to them."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from text2grad.errors import first_error
from text2grad.feedback.critiques import Critique, Failure, Judgement
from text2grad.feedback.spans import QuoteCounts, Span, within_turns
from text2grad.feedback.transcripts import Message, Record, ResponseText, turn_at, turns_of

SourceKind = Literal["llm", "program", "human", "reward_model"]


class Example(Record):
    """One prompt of a task with its `id`, a reference answer if there is one, and task data in
    `meta`."""

    id: str
    prompt: tuple[Message, ...] = Field(min_length=1)
    reference: ResponseText = ""
    meta: dict[str, Any] = Field(default_factory=dict)


class Preference(Record):
    """Two answers to one prompt, one of which was preferred; task data in `meta`."""

    id: str
    prompt: tuple[Message, ...] = Field(min_length=1)
    chosen: ResponseText
    rejected: ResponseText
    meta: dict[str, Any] = Field(default_factory=dict)


HUMAN_FEEDBACK = "human_feedback"
"""Key of an example's `meta`: what a person wrote about a response to it."""
DRAFT = "draft"
"""Key of an example's `meta`: the response which `HUMAN_FEEDBACK` is about."""


def human_feedback_on(example: Example, response: str) -> str:
    """Return what a person wrote about exactly this response; empty if no one did.

    A data set's feedback is about its own draft and says nothing about any other text.
    """
    about = example.meta.get(DRAFT, response)
    return str(example.meta.get(HUMAN_FEEDBACK, "")) if about == response else ""


def escapes_folder(id: str) -> bool:
    """True if an id, used as a path, would name a place above its folder."""
    return ".." in id.replace("\\", "/").split("/")


class Source(Record):
    """The origin of feedback: its `kind`, its author or `model`, and the `prompt_version`."""

    kind: SourceKind
    model: str = ""
    prompt_version: str = ""


OF_A_JUDGEMENT = frozenset(
    {*QuoteCounts.model_fields, "forced", "lost", "omissions", "turn_scores", "annotator", "shown", "asked_without"}
)
"""Keys of a record's `meta` that belong to its judgement."""


class Feedback(Record):
    """One line of a feedback file: an answered prompt with its critique, or with the error in its
    place.

    `id`, `prompt` and `response`: the question and the answer. `critique`, `spans`, `score`: the
    judgement, or `error`: why there is none. `source`: who judged; `usage`: what that cost. `meta`:
    the task's data, and the rest of the judgement.
    """

    id: str
    prompt: tuple[Message, ...] = Field(min_length=1)
    response: ResponseText
    critique: str = ""
    spans: tuple[Span, ...] = ()
    score: float | None = Field(default=None, ge=-1.0, le=1.0)
    error: Failure | None = None
    source: Source
    usage: dict[str, float] = Field(default_factory=dict)
    meta: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _spans_quote_the_response(self) -> Self:
        for span in self.spans:
            first, last = (turn_at(self.response, place) for place in (span.start, span.end - 1))
            if first != last or not first:
                raise ValueError(f"span [{span.start}, {span.end}) crosses turns: write one for each")
            quoted = self.response[span.start : span.end]
            if quoted != span.text:
                place = f"span [{span.start}, {span.end})"
                raise ValueError(f"{place} says {span.text!r} but the response has {quoted!r} there")
        return self

    @model_validator(mode="after")
    def _meta_makes_a_judgement(self) -> Self:
        try:
            judgement = self.judgement()
        except (TypeError, ValueError) as error:
            problem = first_error(error) if isinstance(error, ValueError) else error
            raise ValueError(f"meta: {problem}") from error
        turns = len(turns_of(self.response))
        if isinstance(judgement, Critique) and len(judgement.turn_scores) not in (0, turns):
            raise ValueError(f"meta: turn_scores has {len(judgement.turn_scores)} verdicts for {turns} turns")
        return self

    @classmethod
    def of(cls, example: Example, response: str, judgement: Judgement, source: Source) -> Feedback:
        """Make the record of a judged response; a span across turns becomes one in each turn.

        Args:
            example: the question; what an earlier judgement left in its `meta` is dropped.
            response: the answer.
            judgement: the critique of it, or the failure in its place.
            source: who judged.

        Returns:
            The record.
        """
        meta = {name: value for name, value in example.meta.items() if name not in OF_A_JUDGEMENT}
        meta |= judgement.meta
        common = {"id": example.id, "prompt": example.prompt, "response": response, "source": source}
        if isinstance(judgement, Failure):
            return cls(**common, error=judgement, meta=meta)
        details = {**judgement.quotes.model_dump(), "forced": judgement.forced}
        details |= {name: list(getattr(judgement, name)) for name in ("lost", "omissions", "turn_scores")}
        return cls(
            **common,
            critique=judgement.text,
            spans=within_turns(judgement.spans, response),
            score=judgement.score,
            meta=meta | {name: value for name, value in details.items() if value},
        )

    def example(self) -> Example:
        """Return the example that was answered.

        Returns:
            Its reference is the corrected answer, if people wrote one.
        """
        reference = str(self.meta.get("corrected") or self.meta.get("gold") or "")
        return Example(id=self.id, prompt=self.prompt, reference=reference, meta=self.meta)

    def judgement(self) -> Judgement:
        """Rebuild the judgement.

        Returns:
            The critique, or the failure in its place.
        """
        if self.error is not None:
            return self.error
        return Critique(
            text=self.critique,
            spans=self.spans,
            score=self.score,
            turn_scores=tuple(self.meta.get("turn_scores", ())),
            quotes=self.quotes,
            forced=int(self.meta.get("forced", 0)),
            lost=tuple(self.meta.get("lost", ())),
            omissions=tuple(self.meta.get("omissions", ())),
        )

    @property
    def quotes(self) -> QuoteCounts:
        """The counts of quotes in `meta`, which a failed critique may have too."""
        counts = {name: self.meta.get(name) for name in QuoteCounts.model_fields}
        return QuoteCounts(**{name: count for name, count in counts.items() if isinstance(count, int)})
