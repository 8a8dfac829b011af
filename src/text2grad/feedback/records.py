"""Examples, preferences, and feedback records."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from text2grad.errors import first_error
from text2grad.feedback.critiques import Critique, Failure, Judgement
from text2grad.feedback.spans import QuoteCounts, Span, within_turns
from text2grad.feedback.transcripts import Message, Record, ResponseText, turn_at, turns_of

SourceKind = Literal["llm", "program", "human", "reward_model"]


class Example(Record):
    """One prompt of a task with its `id`, an optional reference answer, and task data in `meta`."""

    id: str
    prompt: tuple[Message, ...] = Field(min_length=1)
    reference: ResponseText = ""
    meta: dict[str, Any] = Field(default_factory=dict)


class Preference(Record):
    """A preferred and a rejected answer to one prompt; task data in `meta`."""

    id: str
    prompt: tuple[Message, ...] = Field(min_length=1)
    chosen: ResponseText
    rejected: ResponseText
    meta: dict[str, Any] = Field(default_factory=dict)


HUMAN_FEEDBACK = "human_feedback"
"""Key of an example's `meta`: human feedback on a response to it."""
DRAFT = "draft"
"""Key of an example's `meta`: the response that `HUMAN_FEEDBACK` refers to."""


def human_feedback_on(example: Example, response: str) -> str:
    """Return the human feedback on exactly this response, or an empty string.

    The feedback of a data set refers to its draft, never to another response.
    """
    draft = example.meta.get(DRAFT, response)
    return str(example.meta.get(HUMAN_FEEDBACK, "")) if draft == response else ""


def escapes_folder(id: str) -> bool:
    """True if an id, used as a path, would leave its folder."""
    return ".." in id.replace("\\", "/").split("/")


class Source(Record):
    """The origin of feedback: its `kind`, its author or `model`, and the `prompt_version`."""

    kind: SourceKind
    model: str = ""
    prompt_version: str = ""


JUDGEMENT_KEYS = frozenset(
    {*QuoteCounts.model_fields, "forced", "lost", "omissions", "turn_scores", "annotator", "shown", "asked_without"}
)
"""Keys of a record's `meta` that belong to its judgement."""


class Feedback(Record):
    """One line of a feedback file: an answered prompt with its critique or an error.

    `id` is the id of the example, `response` the answer, and `critique`, `spans` and `score` its
    critique; `error` is the failure in its place. `source` is who judged it, `usage` the tokens
    that the judgement cost. `meta` holds the data of the task, and the other fields of the
    judgement.
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
    def _check_spans(self) -> Self:
        for span in self.spans:
            place = f"span [{span.start}, {span.end})"
            first, last = (turn_at(self.response, index) for index in (span.start, span.end - 1))
            if first != last or not first:
                raise ValueError(f"{place} crosses turns: write one span per turn")
            quoted = self.response[span.start : span.end]
            if quoted != span.text:
                raise ValueError(f"{place} has the text {span.text!r} but the response has {quoted!r} there")
        return self

    @model_validator(mode="after")
    def _check_meta(self) -> Self:
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
        """Make the record of a judged response; a span across turns becomes one span per turn.

        Fields of an earlier judgement in the example's `meta` are dropped.

        Args:
            example: the prompt that was answered.
            response: the answer, a text or a `Transcript`.
            judgement: its critique, or the failure in its place.
            source: who judged it.

        Returns:
            The record.
        """
        meta = {name: value for name, value in example.meta.items() if name not in JUDGEMENT_KEYS}
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
        """Return the answered example; its reference is the corrected answer, if there is one.

        Returns:
            The example, with the id, prompt and data of this record.
        """
        reference = str(self.meta.get("corrected") or self.meta.get("gold") or "")
        return Example(id=self.id, prompt=self.prompt, reference=reference, meta=self.meta)

    def judgement(self) -> Judgement:
        """Rebuild the critique or the failure.

        Returns:
            The `Failure` if the record has an error, else the `Critique`.
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
        """The quote counts in `meta`, which a failure may have too."""
        counts = {name: self.meta.get(name) for name in QuoteCounts.model_fields}
        return QuoteCounts(**{name: count for name, count in counts.items() if isinstance(count, int)})
