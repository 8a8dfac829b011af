"""The vocabulary of text2grad: examples, critiques and their spans, feedback records, critics, environments.

Plain data, no tensors. A critique points at characters of a response; `align` turns characters into tokens.
`jsonl` reads and writes the records.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated, Any, Literal, NamedTuple, Protocol, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    WrapValidator,
    model_validator,
)

from text2grad.errors import UserError, first_error
from text2grad.named import call_own, refuse_answer

Label = Literal[1, 0, -1]
Place = tuple[int, int]
"""The characters [start, end) of a text."""
SourceKind = Literal["llm", "program", "human", "reward_model"]
FailureKind = Literal["refused", "invalid", "truncated", "exhausted", "unsupported"]


class Record(BaseModel):
    """Base of everything written to disk: immutable, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


# ---- responses


class Message(Record):
    """One chat message."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str


BETWEEN_TURNS = "\n\n"
"""Separates the turns of a transcript; no token wrote it."""


@dataclass(frozen=True)
class Turn:
    """One turn of the policy: its characters [start, end) in the transcript, and the `messages` before it."""

    start: int
    end: int
    messages: tuple[Message, ...] = ()


class Transcript(str):
    """A response of several turns: the policy's own words, joined by `BETWEEN_TURNS`.

    `turns` says where each turn ends and what others said before it, `after` what they said last. Spans,
    quotes and tokens refer to this text, so words of a tool or a user are neither quoted nor paid. A plain
    string is a response of one turn (`turns_of`). In JSON a transcript is the list of its messages. Two
    transcripts are equal if all their messages are; a plain string is compared by its text alone.
    """

    turns: tuple[Turn, ...] = ()
    after: tuple[Message, ...] = ()
    __hash__ = str.__hash__

    @classmethod
    def of(cls, turns: Iterable[tuple[Iterable[Message], str]], after: Iterable[Message] = ()) -> Transcript:
        """Build a transcript from the text of each turn and the messages before it."""
        pairs = [(tuple(messages), text) for messages, text in turns]
        transcript = cls(BETWEEN_TURNS.join(text for _, text in pairs))
        starts = [0, *accumulate(len(text) + len(BETWEEN_TURNS) for _, text in pairs)]
        transcript.turns = tuple(
            Turn(start, start + len(text), messages) for start, (messages, text) in zip(starts, pairs, strict=False)
        )
        transcript.after = tuple(after)
        return transcript

    @classmethod
    def of_messages(cls, messages: Iterable[Message]) -> Transcript:
        """Build a transcript from a conversation: each message of the assistant is a turn.

        Raises:
            ValueError: it has none.
        """
        turns: list[tuple[list[Message], str]] = []
        others: list[Message] = []
        for message in messages:
            if message.role == "assistant":
                turns.append((others, message.content))
                others = []
            else:
                others.append(message)
        if not turns:
            raise ValueError("no message of the assistant in it")
        return cls.of(turns, others)

    def __eq__(self, other: object) -> bool:
        equal = super().__eq__(other)
        if equal is True and isinstance(other, Transcript):
            return (self.turns, self.after) == (other.turns, other.after)
        return equal

    def __ne__(self, other: object) -> bool:
        return not self == other


def turns_of(response: str) -> tuple[Turn, ...]:
    """Return the turns of a response; a plain string is one."""
    return response.turns if isinstance(response, Transcript) else (Turn(0, len(response)),)


def turn_at(response: str, position: int) -> int:
    """Return the number, from 1, of the turn that holds a character; 0 between turns."""
    if not isinstance(response, Transcript):
        return 1
    numbered = enumerate(response.turns, start=1)
    return next((number for number, turn in numbered if turn.start <= position < turn.end), 0)


def conversation_of(response: str) -> list[Message]:
    """Return a response as chat messages: the policy's turns and what others said between them."""
    messages: list[Message] = []
    for turn in turns_of(response):
        messages += [*turn.messages, Message(role="assistant", content=response[turn.start : turn.end])]
    return [*messages, *(response.after if isinstance(response, Transcript) else ())]


def conversation_text(prompt: Iterable[Message]) -> str:
    """Return a conversation as text: a single user message as it is, several with their roles."""
    messages = list(prompt)
    if len(messages) == 1 and messages[0].role == "user":
        return messages[0].content
    return "\n\n".join(f"{message.role}: {message.content}" for message in messages)


def is_foreign(quote: str, response: str) -> bool:
    """True if a quote is not in the policy's words but in those of a tool or a user between them."""
    others = (message.content for message in conversation_of(response) if message.role != "assistant")
    return bool(quote.strip()) and quote not in response and any(quote in content for content in others)


def key_of(response: str) -> str:
    """Return what identifies a response: its text, or all messages of a transcript as JSON."""
    if not isinstance(response, Transcript):
        return response
    return json.dumps([[message.role, message.content] for message in conversation_of(response)])


def _validated_response(value: Any, text: Callable[[Any], str]) -> str:
    """Read a response: a string, a `Transcript`, or the list of its messages."""
    if isinstance(value, list | tuple):
        value = Transcript.of_messages(_message(number, item) for number, item in enumerate(value, start=1))
    if isinstance(value, Transcript) and not value.turns:
        raise ValueError("a transcript without a turn of the assistant")
    return value if isinstance(value, Transcript) else text(value)


def _message(number: int, value: Any) -> Message:
    try:
        return Message.model_validate(value)
    except ValidationError as error:
        raise ValueError(f"message {number}: {first_error(error)}") from error


def _written_response(response: str) -> str | list[Message]:
    return conversation_of(response) if isinstance(response, Transcript) else response


ResponseText = Annotated[
    str,
    WrapValidator(_validated_response, json_schema_input_type=str | list[Message]),
    PlainSerializer(_written_response, when_used="json"),
]
"""A response in a record: a plain string, or a `Transcript`, which in JSON is the list of its messages."""


# ---- examples


class Example(Record):
    """One prompt of a task, a reference answer if there is one, and task data in `meta`."""

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


# ---- critiques


class Span(Record):
    """A labelled character interval of a response.

    `start` and `end` are Unicode code points, `end` exclusive; `text` is the quote itself, so that a record
    can be checked without trusting its offsets. `label` is +1 (good), -1 (poor), or 0: right, but could be
    better (the paper's improvement suggestions), which pays nothing; `reason` says why. `weight` is the
    confidence in the label, such as the share of judgements that agree; it is written only if not 1.
    """

    start: int = Field(ge=0)
    end: int
    label: Label
    text: str
    reason: str = ""
    weight: float = Field(default=1.0, gt=0, le=1, exclude_if=lambda weight: weight == 1.0)

    @model_validator(mode="after")
    def _is_not_empty(self) -> Self:
        if self.end <= self.start:
            raise ValueError(f"empty span [{self.start}, {self.end})")
        return self


class LabelledPlace(NamedTuple):
    """The place of a span, its label (0: neither good nor poor), and the confidence in it (`Span.weight`)."""

    start: int
    end: int
    label: int
    weight: float = 1.0


def spans_at(places: Iterable[LabelledPlace], text: str) -> tuple[Span, ...]:
    """Return the good and the poor places of a text as spans."""
    return tuple(
        Span(start=start, end=end, label=1 if label > 0 else -1, text=text[start:end], weight=weight)
        for start, end, label, weight in places
        if label
    )


class QuoteCounts(Record):
    """Counts of the quotes of a critique that gave no span, or were found in another form. `+` adds them up.

    No span: `unmatched` quotes are not in the response (`foreign`: those of a tool or a user among them),
    `ambiguous` ones occur more than once without saying which, `no_polarity` ones are neither praise nor
    blame, `repeated` ones repeat another. Found in another form (`wire.Tolerance`): `normalised`.
    """

    unmatched: int = 0
    foreign: int = Field(default=0, exclude_if=lambda count: count == 0)
    ambiguous: int = 0
    normalised: int = 0
    no_polarity: int = 0
    repeated: int = 0

    def __add__(self, other: QuoteCounts) -> QuoteCounts:
        return QuoteCounts(**{name: count + getattr(other, name) for name, count in self})


TurnScore = Annotated[float, Field(strict=True, ge=-1.0, le=1.0)] | None


class Critique(Record):
    """Feedback on one response: free text, the spans that it is about, and a verdict in [-1, 1].

    `score`: None without a verdict. `turn_scores`: the verdicts on the turns of a `Transcript`, or empty.
    `quotes` counts the quotes without a span; `lost` are those not in the response, as far as known.
    `forced`: 1 if the token limit ended the answer (grounded decoding closes it in time); of several
    critiques that voted, their number. `omissions`: what the response leaves out, which no span can quote.
    `meta`: what else the critic knows (a program: outcome, tier, evidence); copied to the feedback record.
    """

    text: str
    spans: tuple[Span, ...] = ()
    score: float | None = Field(default=None, ge=-1.0, le=1.0)
    turn_scores: tuple[TurnScore, ...] = ()
    quotes: QuoteCounts = QuoteCounts()
    forced: int = 0
    lost: tuple[str, ...] = ()
    omissions: tuple[str, ...] = ()
    meta: dict[str, Any] = Field(default_factory=dict)

    @property
    def quote_count(self) -> int:
        """The number of quotes that pay: spans that are good or poor, unmatched and ambiguous quotes."""
        return sum(span.label != 0 for span in self.spans) + self.quotes.unmatched + self.quotes.ambiguous


class Failure(Record):
    """A critique that could not be obtained. It is a record, never a score and never an empty critique.

    `meta`: what else the critic knows; copied to the feedback record.
    """

    kind: FailureKind
    message: str
    raw: str = ""
    meta: dict[str, Any] = Field(default_factory=dict, exclude=True)


Judgement = Critique | Failure


# ---- feedback records


class Source(Record):
    """The origin of feedback: its kind, its author or model, and the prompt."""

    kind: SourceKind
    model: str = ""
    prompt_version: str = ""


OF_A_JUDGEMENT = frozenset(
    {*QuoteCounts.model_fields, "forced", "lost", "omissions", "turn_scores", "annotator", "shown", "asked_without"}
)
"""Keys of a record's `meta` that belong to its judgement."""


class Feedback(Record):
    """One line of a feedback file: an answered prompt with its critique, or with the error in its place."""

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

        What an earlier judgement left in the example's `meta` is dropped.
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
        """Return the example that was answered; its reference is the corrected answer, if people wrote one."""
        reference = str(self.meta.get("corrected") or self.meta.get("gold") or "")
        return Example(id=self.id, prompt=self.prompt, reference=reference, meta=self.meta)

    def judgement(self) -> Judgement:
        """Return the critique or failure of this record."""
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


def within_turns(spans: tuple[Span, ...], response: str) -> tuple[Span, ...]:
    """Cut spans at the ends of the turns of a `Transcript`."""
    if not isinstance(response, Transcript):
        return spans
    edges = (
        (span, max(span.start, turn.start), min(span.end, turn.end)) for span in spans for turn in response.turns
    )
    return tuple(
        span.model_copy(update={"start": start, "end": end, "text": response[start:end]})
        for span, start, end in edges
        if start < end
    )


# ---- critics and environments


class Critic(Protocol):
    """Anything that gives feedback: an LLM, a program, people, or a trained reward model.

    One call judges a batch, because a local model is only fast in batches; there are exactly as many
    judgements as responses, in their order. A critic never raises for one bad response: it returns a
    `Failure` in its place.
    """

    source: Source

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        """Judge `responses[i]` as an answer to `examples[i]`."""
        ...


def judgements_of(critic: Critic, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
    """Ask a critic for one judgement per response, and check that it gave them.

    Raises:
        UserError: a critic of the user's own raised; there are not as many judgements as responses, or one of them
            is something else.
    """
    cure = "return one Critique or Failure for each response, in their order"
    judgements = call_own(cure, critic.critique, examples, responses)
    if not isinstance(judgements, list | tuple) or not all(isinstance(item, Judgement) for item in judgements):
        refuse_answer(cure, critic, "critique", judgements)
    if len(judgements) != len(responses):
        name = type(critic).__name__
        raise UserError(f"{name} gave {len(judgements)} judgements of {len(responses)} responses", cure)
    return list(judgements)


Overlap = Literal["helps", "allowed", "never"]


def overlap_of(critic: object) -> Overlap:
    """Return a critic's attribute `overlap`: may it run in a thread while the policy computes?

    `helps`: most of its work is done outside this process (requests, programs). `never`: it computes with
    the policy's own weights. `allowed` is the default.
    """
    overlap: Overlap = getattr(critic, "overlap", "allowed")
    return overlap


def tokens_of(critic: object) -> float:
    """Return a critic's attribute `tokens`: what it has read and written so far; 0 if it is no model."""
    return float(getattr(critic, "tokens", 0.0))


class Environment(Protocol):
    """Answers the turns of a policy in one episode: tools, a game, a simulated user.

    The same example and turns must get the same answers, or a resumed run would differ. verifiers and TRL
    have environments of other shapes, which examples/own_environment.py adapts.
    """

    def reset(self, example: Example) -> Sequence[Message]:
        """Begin an episode; return the messages after the example's prompt (often none)."""
        ...

    def step(self, turn: Message) -> tuple[Sequence[Message], bool]:
        """Return the messages that answer a turn of the policy, and whether the episode is over."""
        ...
