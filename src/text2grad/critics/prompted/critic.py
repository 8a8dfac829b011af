"""The prompted critic: any chat model, asked for a critique and its spans in the format z.

The annotator is a strong model with long instructions; the reward model (paper, section 3.4) is a
local model fine-tuned on what the annotator wrote. Both are this class: they read `judge_messages`
and write z.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, get_args

from text2grad.chat.base import Answer, Chat, Completion, GroundedChat, LimitedChat
from text2grad.chat.client import OpenAIChat, PaidAnswer
from text2grad.chat.journal import FAILURE_STATES, State
from text2grad.chat.questions import Question
from text2grad.critics.prompted.messages import Prompt, fitted_messages
from text2grad.critics.prompted.reading import Reader
from text2grad.critics.prompted.settings import PromptedSettings, RewardModelCriticSettings
from text2grad.critics.spec import CriticSpec, Ready
from text2grad.feedback import (
    Critic,
    Critique,
    Example,
    Failure,
    Feedback,
    Judgement,
    Message,
    Overlap,
    Source,
    Transcript,
    get_overlap,
    human_feedback_on,
    spans_at,
)
from text2grad.sandbox import NO_VERDICT, Outcome

Pair = tuple[Example, str]
"""An example, and a response to it."""


class PromptedCritic:
    """A critic made of a chat model and a prompt.

    `prompt` is the text of a prompt file (`tasks.base.read_prompt`), of the version in `source`, or
    a `Prompt`, which may have an answer format of its own.
    `tested` takes its place where `meta` of an example says what came of the response's tests,
    `anchor` where a person wrote about this very response: it finds the words the person means, and
    the critique stays the person's, and has no score. Without them every response is judged with
    `prompt`. An unreadable answer is a `Failure`; `annotator` and `verdict_only` say how answers
    are read (`Reader`). Where the chat knows its limit, a prompt that is too long loses its middle.

    Raises:
        UserError: the prompt has an unknown placeholder, or no place for the response.
    """

    def __init__(
        self,
        chat: Chat,
        prompt: str | Prompt,
        source: Source,
        annotator: bool = False,
        tested: Prompt | None = None,
        anchor: Prompt | None = None,
        verdict_only: bool = False,
    ) -> None:
        self.chat, self.source = chat, source
        self.overlap = get_overlap(chat)
        self.usage: Counter[str] = Counter()
        self._prompt = Prompt(prompt, source.prompt_version) if isinstance(prompt, str) else prompt
        self._tested, self._anchor = tested, anchor
        self._reader = Reader(annotator, verdict_only)
        self._excess = chat.excess if isinstance(chat, LimitedChat) else lambda _: 0
        self._formats = {prompt.version: prompt.format for prompt in (tested, anchor, self._prompt) if prompt}

    @property
    def tokens(self) -> float:
        """Read and written in all; an equal question counts each time."""
        return float(self.usage.total())

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        """Ask for all critiques at once and read the answers.

        Raises:
            UserError: what would fail every critique, or a budget that is reached
                (`chat.client.OpenAIChat`).
        """
        pairs = list(zip(examples, responses, strict=True))
        answers = self._answers(pairs)
        for answer in answers:
            self.usage.update(tokens_in(answer))
        return [self._judgement(pair, answer) for pair, answer in zip(pairs, answers, strict=True)]

    def _answers(self, pairs: Sequence[Pair]) -> list[Answer]:
        """Return the chat's answer about each pair."""
        chat = self.chat
        if isinstance(chat, OpenAIChat):
            return chat.answers([self.question(*pair) for pair in pairs], self.verdict)
        turns = [fitted_messages(self._prompt_for(*pair).text, *pair, self._excess) for pair in pairs]
        about = [response for _, response in pairs]
        return chat.complete_about(turns, about) if isinstance(chat, GroundedChat) else chat.complete(turns)

    def question(self, example: Example, response: str) -> Question:
        """Return the question to an endpoint about one response.

        Only the question to an annotator has the schema of the answer: it requires parts of z that
        a trained model may never have seen.
        """
        assert isinstance(self.chat, OpenAIChat), "only an endpoint's answers have ids"
        prompt = self._prompt_for(example, response)
        turns = fitted_messages(prompt.text, example, response, self._excess)
        schema = prompt.schema(isinstance(response, Transcript)) if self._reader.annotator else ""
        return self.chat.asker.questioner.question(turns, prompt.version, schema, response)

    def verdict(self, question: Question, answer: Answer, last: bool) -> State | None:
        """How a question ends with an answer; None: a fresh one is worth its price."""
        judgement = self._reader.read(answer, question.about, self._formats[question.version].parse)
        if isinstance(answer, Completion) and not last and self._reader.broken(judgement):
            return None
        kept = self._reader.validated(judgement)
        return FAILURE_STATES[kept.kind] if isinstance(kept, Failure) else "ok"

    def feedback(self, pairs: Iterable[Pair]) -> Iterator[Feedback]:
        """The records of those pairs that an endpoint has answered, in their order; nothing is
        asked."""
        assert isinstance(self.chat, OpenAIChat), "only an endpoint has a journal"
        for pair in pairs:
            if (paid := self.chat.paid_answer(self.question(*pair))) is not None:
                yield self._record(pair, paid)

    def _record(self, pair: Pair, paid: PaidAnswer) -> Feedback:
        kind = "human" if self._anchored(*pair) else self.source.kind
        known = {"kind": kind, "prompt_version": self._prompt_for(*pair).version}
        judgement = self._judgement(pair, paid.answer)
        record = Feedback.of(*pair, judgement, self.source.model_copy(update=known))
        meta = {**record.meta, "asked_without": list(paid.asked_without)} if paid.asked_without else record.meta
        return record.model_copy(update={"usage": paid.usage, "meta": meta})

    def _judgement(self, pair: Pair, answer: Answer) -> Judgement:
        read = self._reader.read(answer, pair[1], self._prompt_for(*pair).format.parse)
        judgement = self._reader.validated(read)
        if isinstance(judgement, Failure):
            return judgement.model_copy(update={"meta": {**judgement.meta, **_lost_quotes(read)}})
        words = self._anchored(*pair)
        return judgement.model_copy(update={"text": words, "score": None}) if words else judgement

    def _anchored(self, example: Example, response: str) -> str:
        """The person's words that spans are looked for; "" where the response is judged."""
        return human_feedback_on(example, response) if self._anchor else ""

    def _prompt_for(self, example: Example, response: str) -> Prompt:
        if self._anchor and self._anchored(example, response):
            return self._anchor
        outcome = example.meta.get("outcome")
        known = outcome in get_args(Outcome) and outcome not in NO_VERDICT
        return self._tested if self._tested and known else self._prompt


class Tagger(Protocol):
    """A model that labels responses where they stand in the judge's prompts
    (`policy.heads.tagger`)."""

    overlap: Overlap

    def excess(self, conversation: Sequence[Message]) -> int:
        """Tokens by which a conversation exceeds the model's context; 0 or less: it fits."""
        ...

    def tag(self, conversations: Sequence[Sequence[Message]], texts: Sequence[str]) -> list[Completion | Failure]:
        """The labelled places of each response `texts[i]` and the verdict on it, without words."""
        ...


class TaggerCritic:
    """A reward model that writes nothing: spans from a head that reads the prompt, and the verdict
    from them."""

    def __init__(self, tagger: Tagger, prompt: str, source: Source) -> None:
        self.tagger, self.source = tagger, source
        self.overlap = tagger.overlap
        self.tokens = 0.0  # read in all
        self._prompt = prompt

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        """Return a critique without words of each response; one that cannot be read whole is a
        failure."""
        pairs = zip(examples, responses, strict=True)
        asked = [fitted_messages(self._prompt, *pair, self.tagger.excess) for pair in pairs]
        return [self._judgement(*each) for each in zip(self.tagger.tag(asked, responses), responses, strict=True)]

    def _judgement(self, answer: Completion | Failure, response: str) -> Judgement:
        if isinstance(answer, Failure):
            return answer
        self.tokens += sum(tokens_in(answer).values())
        return Critique(text="", spans=spans_at(answer.spans or (), response), score=answer.score)


def tokens_in(answer: Answer) -> dict[str, int]:
    """Input and output tokens of one request by name, if the chat reports them."""
    usage = answer.usage if isinstance(answer, Completion) else {}
    return {name: int(count) for name, count in usage.items() if name.endswith("tokens")}


def _lost_quotes(read: Judgement) -> dict[str, object]:
    """Count the quotes of a critique that was refused for them, as those of all others are
    counted."""
    if isinstance(read, Failure):
        return {}
    return {"unmatched": read.quotes.unmatched, "dropped_spans": len(read.spans), "lost": list(read.lost)}


def _ready(settings: object, ready: Ready) -> Critic:
    """The critic over an endpoint or a reward model, as the run has it."""
    assert ready.critic is not None
    return ready.critic


PROMPTED = CriticSpec(
    "prompted",
    make=_ready,
    settings=PromptedSettings,
    manner=("concurrency", "prices", "budget_usd"),
    source="llm",
    blind=True,
    about="any OpenAI-compatible endpoint",
)
REWARD_MODEL = CriticSpec(
    "reward_model",
    make=_ready,
    settings=RewardModelCriticSettings,
    manner=("gate",),
    reads=("reward_model.max_new_tokens", "reward_model.kind", "reward_model.grounded"),
    files=lambda settings, folder: {
        "the reward model": settings.folder or folder / "reward_model" / "policy",
    },
    measures_with=lambda ready: ready.critic,
    source="reward_model",
    blind=True,
    about="trained here",
)
