"""The words of text2grad: examples, spans, critiques, feedback records, and who speaks: `Critic`, `Environment`.

Plain data, no tensors. A critique points at characters; `align` turns characters into tokens.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Protocol, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    WrapValidator,
    model_validator,
)
from pydantic_core import PydanticSerializationError

from text2grad.errors import UserError

Label = Literal[1, 0, -1]
Place = tuple[int, int]
"""The characters [start, end) of a text."""
SourceKind = Literal["llm", "program", "human", "reward_model"]
FailureKind = Literal["refused", "invalid", "truncated", "exhausted", "unsupported"]
DEEPEST_JSON = 100
"""Open brackets around a value of JSON that is read; what is nested deeper could not be written again."""
_TURN = {"role", "content"}
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[{]|[\]}]')


class Record(BaseModel):
    """Base of everything written to disk: immutable, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Message(Record):
    """One chat turn."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str


BETWEEN_TURNS = "\n\n"
"""What stands between the turns of a transcript; no token wrote it."""


@dataclass(frozen=True)
class Turn:
    """One turn of the policy in a transcript: its characters [start, end), and the `messages` of others before
    it."""

    start: int
    end: int
    messages: tuple[Message, ...] = ()


class Transcript(str):
    """A response of several turns: the policy's own words, joined by `BETWEEN_TURNS`; where one turn ends and what
    others said in between is in `turns`, and in `after` what they said last.

    It is the text that spans, quotes and tokens refer to, so words of a tool or a user can neither be quoted nor
    paid. A plain string is a response of one turn (`turns_of`). In JSON it is the list of its messages. Two of
    them are equal if all messages are; beside a plain string the words alone count.
    """

    turns: tuple[Turn, ...] = ()
    after: tuple[Message, ...] = ()
    __hash__ = str.__hash__

    @classmethod
    def of(cls, turns: Iterable[tuple[Iterable[Message], str]], after: Iterable[Message] = ()) -> Transcript:
        """From each turn's words, with the messages of others that stand before it."""
        said = [(tuple(messages), words) for messages, words in turns]
        made = cls(BETWEEN_TURNS.join(words for _, words in said))
        ends = accumulate(len(words) + len(BETWEEN_TURNS) for _, words in said)
        starts = [0, *ends]
        made.turns = tuple(
            Turn(start, start + len(words), messages)
            for start, (messages, words) in zip(starts, said, strict=False)
        )
        made.after = tuple(after)
        return made

    @classmethod
    def of_messages(cls, messages: Iterable[Message]) -> Transcript:
        """From a conversation after the prompt: each message of the assistant is a turn (`conversation_of`).

        Raises:
            ValueError: there is none.
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
        alike = super().__eq__(other)
        if alike is True and isinstance(other, Transcript):
            return (self.turns, self.after) == (other.turns, other.after)
        return alike

    def __ne__(self, other: object) -> bool:
        return not self == other


def turns_of(response: str) -> tuple[Turn, ...]:
    """The turns of a response; a plain string is one."""
    return response.turns if isinstance(response, Transcript) else (Turn(0, len(response)),)


def turn_at(response: str, position: int) -> int:
    """The number, from 1, of the turn of a response that a character is in; 0 of one between turns."""
    if not isinstance(response, Transcript):
        return 1
    numbered = enumerate(response.turns, start=1)
    return next((number for number, turn in numbered if turn.start <= position < turn.end), 0)


def is_foreign(quote: str, response: str) -> bool:
    """Whether a quote is not in the policy's own words, and in what a tool or a user said between them."""
    others = (message.content for message in conversation_of(response) if message.role != "assistant")
    return bool(quote.strip()) and quote not in response and any(quote in content for content in others)


def conversation_of(response: str) -> list[Message]:
    """A response as the messages of a chat: the policy's turns and what others said between them."""
    found: list[Message] = []
    for turn in turns_of(response):
        found += [*turn.messages, Message(role="assistant", content=response[turn.start : turn.end])]
    return [*found, *(response.after if isinstance(response, Transcript) else ())]


def conversation_text(prompt: Iterable[Message]) -> str:
    """A conversation as text: one user turn as it is, several with their roles in front."""
    turns = list(prompt)
    if len(turns) == 1 and turns[0].role == "user":
        return turns[0].content
    return "\n\n".join(f"{turn.role}: {turn.content}" for turn in turns)


def key_of(response: str) -> str:
    """What tells a response from every other: its text, or all messages of a transcript as JSON."""
    if not isinstance(response, Transcript):
        return response
    return json.dumps([[message.role, message.content] for message in conversation_of(response)])


def _validated_response(value: Any, text: Callable[[Any], str]) -> str:
    """A response as it is read: a string, a `Transcript`, or the list of its messages."""
    if isinstance(value, list | tuple):
        value = Transcript.of_messages(_message(number, each) for number, each in enumerate(value, start=1))
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


class LabelledPlace(NamedTuple):
    """Start and end of a place, its label: 1, -1, or 0 for neither, and how sure that is (`Span.weight`)."""

    start: int
    end: int
    label: int
    weight: float = 1.0


class Span(Record):
    """A labelled character interval of a response.

    `start` and `end` are Unicode code points, `end` exclusive; `text` is the quote itself, so that a
    record can be checked without trusting its offsets. `label` is +1 (good), -1 (poor) or 0: what is right and
    could be better (the paper's improvement suggestions), `reason` says how; it pays nothing. `weight` is how
    sure the label is: the share of several judgements that agree on it, or one of as many places as a critic
    cannot tell apart; it is written only where it is not 1.
    """

    start: int = Field(ge=0)
    end: int
    label: Label
    text: str
    reason: str = ""
    weight: float = Field(default=1.0, gt=0, le=1, exclude_if=lambda weight: weight == 1.0)

    @model_validator(mode="after")
    def _not_empty(self) -> Self:
        if self.end <= self.start:
            raise ValueError(f"empty span [{self.start}, {self.end})")
        return self


def spans_at(places: Iterable[LabelledPlace], text: str) -> tuple[Span, ...]:
    """The places of a text that are good or poor, as spans."""
    return tuple(
        Span(start=start, end=end, label=1 if label > 0 else -1, text=text[start:end], weight=weight)
        for start, end, label, weight in places
        if label
    )


class Source(Record):
    """Who gave the feedback, and by which prompt."""

    kind: SourceKind
    model: str = ""
    prompt_version: str = ""


class Failure(Record):
    """A critique that could not be obtained. It is a record, never a score and never an empty critique.

    `meta` is what else the critic knows; it goes into the meta of the feedback record.
    """

    kind: FailureKind
    message: str
    raw: str = ""
    meta: dict[str, Any] = Field(default_factory=dict, exclude=True)


class QuoteCounts(Record):
    """Quotes (or marks) of a critique that gave no span, or were found in another form; `+` adds them up.

    No span: `unmatched` are not in the response (of these, `foreign` are what a tool or a user said), `ambiguous`
    occur more than once without saying which, `no_polarity` are neither praise
    nor blame, `repeated` say again what another one says. Found, but not to the letter (`wire.LocateSettings`):
    `normalised`, `fuzzy`.
    """

    unmatched: int = 0
    foreign: int = Field(default=0, exclude_if=lambda count: count == 0)
    ambiguous: int = 0
    normalised: int = 0
    fuzzy: int = 0
    no_polarity: int = 0
    repeated: int = 0

    def __add__(self, other: QuoteCounts) -> QuoteCounts:
        return QuoteCounts(**{name: count + getattr(other, name) for name, count in self})


TurnScore = Annotated[float, Field(ge=-1.0, le=1.0)] | None


class Critique(Record):
    """Feedback on one response: free text, the spans it talks about, and a verdict in [-1, 1].

    `score` is None when the critic gives no verdict; `turn_scores` are those of single turns of a `Transcript`, one
    for each (None: no verdict), or empty. `quotes` counts what became of the quotes that pay; `lost` are
    those that are not in the response, as far as they are known. `forced` is 1 where the token limit, not the
    model, ended the answer (grounded decoding closes it in time); of several critiques that voted, how many.
    `omissions` is what the response leaves out, which no span can point at. `meta` is what else the critic knows
    (of a program: outcome, tier, evidence); it goes into the meta of the feedback record.
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
        """How many quotes that pay there are: those that became a span, and the unmatched and ambiguous ones."""
        return sum(span.label != 0 for span in self.spans) + self.quotes.unmatched + self.quotes.ambiguous


Judgement = Critique | Failure


class Example(Record):
    """One prompt: what the policy is asked, a reference answer if there is one, and task data in `meta`."""

    id: str
    prompt: tuple[Message, ...] = Field(min_length=1)
    reference: ResponseText = ""
    meta: dict[str, Any] = Field(default_factory=dict)


class Preference(Record):
    """Two answers to one prompt, of which one was preferred; the task's data in `meta`, as of an `Example`."""

    id: str
    prompt: tuple[Message, ...] = Field(min_length=1)
    chosen: ResponseText
    rejected: ResponseText
    meta: dict[str, Any] = Field(default_factory=dict)


HUMAN_FEEDBACK = "human_feedback"
"""Key of an example's `meta`: what a person wrote about a response to it."""
DRAFT = "draft"
"""Key of an example's `meta`: the response that this is about. Without it, the one that the example comes with."""


def leads_out(id: str) -> bool:
    """Whether an id, taken for a path, would name a place above its folder."""
    return ".." in id.replace("\\", "/").split("/")


def human_feedback_on(example: Example, response: str) -> str:
    """What a person wrote about exactly this response; empty if no one did.

    A data set's feedback is about the data set's own draft and says nothing about any other text.
    """
    about = example.meta.get(DRAFT, response)
    return str(example.meta.get(HUMAN_FEEDBACK, "")) if about == response else ""


class Critic(Protocol):
    """Anything that gives feedback: an LLM, a program, people, or a trained reward model.

    One call judges a batch, because a local model is only fast in batches; the answers come in the
    order of the questions and there are exactly as many. A critic never raises for one bad response:
    it returns a `Failure` in its place.
    """

    source: Source

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        """Judge `responses[i]` as an answer to `examples[i]`."""
        ...


def judgements_of(critic: Critic, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
    """What a critic says of `responses[i]` as answers to `examples[i]`, one judgement each.

    Raises:
        UserError: there are not as many judgements as responses, or one of them is something else.
    """
    said = critic.critique(examples, responses)
    name, cure = type(critic).__name__, "return one Critique or Failure for each response, in their order"
    if len(said) != len(responses):
        raise UserError(f"{name} gave {len(said)} judgements of {len(responses)} responses", cure)
    if odd := [each for each in said if not isinstance(each, Critique | Failure)]:
        raise UserError(f"{name} gave a {type(odd[0]).__name__} as a judgement", cure)
    return said


Overlap = Literal["helps", "allowed", "never"]


def overlap_of(critic: object) -> Overlap:
    """Whether a critic may work in a thread while the policy computes; a critic says so in `overlap`.

    `helps`: most of its work is done outside this process (requests, programs); `never`: it computes with the
    policy's own weights. One that says nothing may, if asked for.
    """
    able: Overlap = getattr(critic, "overlap", "allowed")
    return able


def tokens_of(critic: object) -> float:
    """Tokens that a critic has read and written so far, by its `tokens`; 0 of one that is no model."""
    return float(getattr(critic, "tokens", 0.0))


class Environment(Protocol):
    """What answers the turns of a policy in one episode: tools, a game, a user who is played.

    The same example and the same turns must have the same answers, or a resumed run would be another one. verifiers
    and TRL have environments of other shapes, which examples/own_environment.py adapts.
    """

    def reset(self, example: Example) -> Sequence[Message]:
        """Begin an episode; what is said before the first turn, behind the example's prompt (often nothing)."""
        ...

    def step(self, turn: Message) -> tuple[Sequence[Message], bool]:
        """What others say to a turn of the policy, and whether the episode is over."""
        ...


OF_A_JUDGEMENT = frozenset(
    {*QuoteCounts.model_fields, "forced", "lost", "omissions", "turn_scores", "annotator", "shown", "asked_without"}
)
"""Keys of a record's `meta` that its judgement left there."""


def _is_verdict(score: object) -> bool:
    return score is None or (type(score) in (int, float) and -1 <= score <= 1)  # type: ignore[operator]


class Feedback(Record):
    """One line of a feedback file: an answered prompt with its critique, or with the error that replaced it."""

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
            if self.response[span.start : span.end] != span.text:
                found = self.response[span.start : span.end]
                raise ValueError(
                    f"span [{span.start}, {span.end}) says {span.text!r} but the response has {found!r} there"
                )
        return self

    @model_validator(mode="after")
    def _meta_is_of_a_judgement(self) -> Self:
        if self.error is None and self.meta.keys() & OF_A_JUDGEMENT:
            scores, turns = self.meta.get("turn_scores", []), len(turns_of(self.response))
            if scores != [] and not (isinstance(scores, list) and [*map(_is_verdict, scores)] == [True] * turns):
                problem = f"a verdict from -1 to 1, or null, for each of {turns} turns"
                raise ValueError(f"turn_scores {str(scores)[:60]}: {problem}")
            try:
                self.judgement()
            except ValidationError as error:
                raise ValueError(f"meta: {first_error(error)}") from error
            except (TypeError, ValueError) as error:
                raise ValueError(f"meta: {error}") from error
        return self

    @classmethod
    def of(cls, example: Example, response: str, judgement: Judgement, source: Source) -> Feedback:
        """The record of one judged response; a span across turns becomes one in each. What an earlier judgement
        left in the example's `meta` is left out."""
        kept = {name: value for name, value in example.meta.items() if name not in OF_A_JUDGEMENT}
        meta = {**kept, **judgement.meta}
        common = {"id": example.id, "prompt": example.prompt, "response": response, "source": source}
        if isinstance(judgement, Failure):
            return cls(**common, error=judgement, meta=meta)
        found = {**judgement.quotes.model_dump(), "forced": judgement.forced}
        found |= {name: list(getattr(judgement, name)) for name in ("lost", "omissions", "turn_scores")}
        return cls(
            **common,
            critique=judgement.text,
            spans=within_turns(judgement.spans, response),
            score=judgement.score,
            meta={**meta, **{name: value for name, value in found.items() if value}},
        )

    def example(self) -> Example:
        """The example this record is about; its reference is the answer as people corrected it, if they did."""
        reference = str(self.meta.get("corrected") or self.meta.get("gold") or "")
        return Example(id=self.id, prompt=self.prompt, reference=reference, meta=self.meta)

    def judgement(self) -> Judgement:
        """The critique (or failure) this record holds."""
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
        """What became of the quotes, of those of a critique that was dropped for them too."""
        known = {name: self.meta.get(name) for name in QuoteCounts.model_fields}
        return QuoteCounts(**{name: count for name, count in known.items() if isinstance(count, int)})


def within_turns(spans: tuple[Span, ...], response: str) -> tuple[Span, ...]:
    """Spans cut at the ends of the turns of a `Transcript`."""
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


R = TypeVar("R", bound=Record)


def first_error(error: ValidationError) -> str:
    """A pydantic error as one line: where, and what is wrong."""
    detail = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in detail["loc"])
    message = detail["msg"].removeprefix("Value error, ")
    return f"{where}: {message}" if where else message


def storable(text: str) -> str:
    """Text without lone surrogates, which UTF-8 cannot encode: each becomes a question mark."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def to_json(value: object, **options: Any) -> str:
    """`value` as JSON that can always be encoded: every writer of JSON uses this. `options` are of `json.dumps`."""
    return storable(json.dumps(value, ensure_ascii=False, **options))


class ExcessiveJSONError(json.JSONDecodeError):
    """JSON that is refused for its size: nested too deeply, or an integer of thousands of digits."""


def from_json(text: str, keys_once: bool = False) -> Any:
    """The value of a JSON text: every reader of what others wrote uses this.

    Raises:
        json.JSONDecodeError: it is not JSON; or, with `keys_once`, an object has a key twice.
        ExcessiveJSONError: an integer has thousands of digits, or it is nested more than `DEEPEST_JSON` deep.
    """
    if text.count("[") + text.count("{") > DEEPEST_JSON and _depth(text) > DEEPEST_JSON:
        raise ExcessiveJSONError("nested too deeply", text, 0)
    try:
        return json.loads(text, object_pairs_hook=_once if keys_once else None)
    except json.JSONDecodeError:
        raise
    except ValueError as error:
        raise ExcessiveJSONError("an integer of thousands of digits", text, 0) from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise json.JSONDecodeError(f"the key {twice[:40]!r} is there twice", "", 0)
    return found


def _depth(text: str) -> int:
    """The most brackets open at once outside strings."""
    deepest = depth = 0
    for match in _BRACKETS.finditer(text):
        depth += (match[0] in "[{") - (match[0] in "]}")
        deepest = max(deepest, depth)
    return deepest


def read_jsonl(path: Path, kind: type[R]) -> Iterator[R]:
    """Read records of `kind` from a JSON Lines file.

    Raises:
        UserError: the file is missing or unreadable, or a line is not such a record; names the line.
    """
    is_table = kind is Feedback and path.suffix in (".csv", ".tsv")
    cure = _import_it(path) if is_table else "one JSON object per line"
    with reading(path), path.open(encoding="utf-8-sig") as lines:
        for number, value in json_lines(lines, path, cure):
            try:
                yield kind.model_validate(value, strict=False)
            except ValidationError as error:
                raise UserError(
                    f"{path}:{number}: {first_error(error)}", _cure(kind, value, path, number)
                ) from error


def _cure(kind: type[Record], value: object, path: Path, number: int) -> str:
    """A row that is not one of ours at all is perhaps feedback as somebody wrote it."""
    response = value.get("response") if isinstance(value, dict) else None
    if isinstance(response, list) and any(isinstance(each, dict) and each.keys() - _TURN for each in response):
        return _import_it(path)
    if kind is Feedback and isinstance(value, dict) and "response" in value and "source" not in value:
        return _import_it(path)
    return f"fix or remove line {number}"


def _import_it(path: Path) -> str:
    return f"feedback of your own is read by: text2grad import {path} --out feedback.jsonl"


def json_lines(
    lines: Iterable[str], path: Path, cure: str = "one JSON object per line"
) -> Iterator[tuple[int, Any]]:
    """The value of every line of JSON that is not blank, with its number from 1.

    Raises:
        UserError: a line is not JSON; names it, with this cure.
    """
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield number, from_json(line, keys_once=True)
        except json.JSONDecodeError as error:
            raise UserError(f"{path}:{number}: not JSON: {error.msg}", cure) from error


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """An error of the disk, and bytes that are not UTF-8, as one line.

    Raises:
        UserError: `path` cannot be read.
    """
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}", "check the path") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text at byte {error.start}", "save the file as UTF-8") from error


def read_records(path: str | Path) -> list[Feedback]:
    """The feedback records of a JSON Lines file.

    Raises:
        UserError: see `read_jsonl`.
    """
    return list(read_jsonl(Path(path), Feedback))


def write_records(path: str | Path, records: Iterable[Feedback]) -> int:
    """Write feedback records as a JSON Lines file, at once; how many.

    Raises:
        UserError: see `write_jsonl`.
    """
    return write_jsonl(Path(path), records)


def record_json(record: Record, exclude_none: bool = False) -> str:
    """A record as one line of JSON that can always be encoded; see `to_json`."""
    try:
        return record.model_dump_json(exclude_none=exclude_none)
    except PydanticSerializationError:  # a lone surrogate somewhere in it
        return to_json(record.model_dump(mode="json", exclude_none=exclude_none))


def append_jsonl(path: Path, records: Iterable[Record]) -> int:
    """Append records, one line each, flushed to disk; returns how many. Fields that are None are left out.

    Raises:
        UserError: the file cannot be written; on a full disk, what was written before is still there.
    """
    count = 0
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as handle:
            for record in records:
                handle.write(record_json(record, exclude_none=True) + "\n")
                count += 1
            handle.flush()
            os.fsync(handle.fileno())
    return count


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """An error of the disk as one line.

    Raises:
        UserError: `path` cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}", "make room, or choose another place") from error


def refuse_folder(path: Path) -> None:
    """Before a file is written.

    Raises:
        UserError: there is a folder of that name.
    """
    if path.is_dir():
        raise UserError(f"cannot write {path}: Is a directory", "name a file, in it or elsewhere")


def write_jsonl(path: Path, records: Iterable[Record]) -> int:
    """Write a whole file at once: to a temporary name, then renamed, so that a crash leaves the old one.

    Raises:
        UserError: the file cannot be written; the old one stays.
    """
    refuse_folder(path)
    temporary = path.with_name(path.name + ".partial")
    temporary.unlink(missing_ok=True)
    try:
        count = append_jsonl(temporary, records)
        with writing(path):
            temporary.touch()
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return count
