"""The prompted critic: a chat model that writes a critique with spans in the format z.

The annotator is a strong model with long instructions. The reward model (paper, section 3.4) is a
local model fine-tuned on the annotator's critiques. Both are instances of one class: they read
`judge_messages` and write z.
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
"""An example and a response to it."""


class PromptedCritic:
    """A critic made of a chat model and a prompt.

    An invalid answer is a `Failure`. If the chat knows its context length, the middle of a long
    prompt is cut out (`fitted_messages`).

    Args:
        prompt: the text of a prompt file (`tasks.base.read_prompt`) of the version in `source`, or
            a `Prompt`, which may define its own answer format.
        annotator: read answers as an annotator's (`Reader`).
        tested: replaces `prompt` if the test results of the response are in the example's `meta`.
        anchor: replaces `prompt` if there is human feedback on the response. Its answers only place
            spans; the critique keeps the human text and has no score.
        verdict_only: read only the verdict of a head (`Reader`).

    Raises:
        UserError: the prompt has an unknown placeholder, or none for the response.
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
        """Tokens read and written so far; repeated questions count every time."""
        return float(self.usage.total())

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        """Request all critiques at once and parse the answers.

        Raises:
            UserError: an error that would fail every critique, or an exhausted budget
                (`chat.client.OpenAIChat`).
        """
        pairs = list(zip(examples, responses, strict=True))
        answers = self._answers(pairs)
        for answer in answers:
            self.usage.update(token_counts(answer))
        return [self._judgement(pair, answer) for pair, answer in zip(pairs, answers, strict=True)]

    def _answers(self, pairs: Sequence[Pair]) -> list[Answer]:
        """Return the chat's answers about the pairs."""
        chat = self.chat
        if isinstance(chat, OpenAIChat):
            return chat.answers([self.question(*pair) for pair in pairs], self.verdict)
        turns = [fitted_messages(self._prompt_for(*pair).text, *pair, self._excess) for pair in pairs]
        responses = [response for _, response in pairs]
        return chat.complete_about(turns, responses) if isinstance(chat, GroundedChat) else chat.complete(turns)

    def question(self, example: Example, response: str) -> Question:
        """Return the question to an endpoint about one response.

        Only an annotator's question includes the answer schema, which requires parts of z that a
        trained model may never have seen.
        """
        assert isinstance(self.chat, OpenAIChat), "only an endpoint's answers have ids"
        prompt = self._prompt_for(example, response)
        turns = fitted_messages(prompt.text, example, response, self._excess)
        schema = prompt.schema(isinstance(response, Transcript)) if self._reader.annotator else ""
        return self.chat.asker.questioner.question(turns, prompt.version, schema, response)

    def verdict(self, question: Question, answer: Answer, last: bool) -> State | None:
        """Return the final state of a question with this answer; None: sample a new answer."""
        judgement = self._reader.read(answer, question.about, self._formats[question.version].parse)
        if isinstance(answer, Completion) and not last and self._reader.needs_retry(judgement):
            return None
        judgement = self._reader.validate(judgement)
        return FAILURE_STATES[judgement.kind] if isinstance(judgement, Failure) else "ok"

    def feedback(self, pairs: Iterable[Pair]) -> Iterator[Feedback]:
        """Yield the records of pairs that the endpoint has already answered, in order."""
        assert isinstance(self.chat, OpenAIChat), "only an endpoint has a journal"
        for pair in pairs:
            if (stored := self.chat.paid_answer(self.question(*pair))) is not None:
                yield self._record(pair, stored)

    def _record(self, pair: Pair, stored: PaidAnswer) -> Feedback:
        kind = "human" if self._human_text(*pair) else self.source.kind
        update = {"kind": kind, "prompt_version": self._prompt_for(*pair).version}
        judgement = self._judgement(pair, stored.answer)
        record = Feedback.of(*pair, judgement, self.source.model_copy(update=update))
        dropped = {"asked_without": list(stored.asked_without)} if stored.asked_without else {}
        return record.model_copy(update={"usage": stored.usage, "meta": {**record.meta, **dropped}})

    def _judgement(self, pair: Pair, answer: Answer) -> Judgement:
        parsed = self._reader.read(answer, pair[1], self._prompt_for(*pair).format.parse)
        judgement = self._reader.validate(parsed)
        if isinstance(judgement, Failure):
            meta = dict(judgement.meta)
            if isinstance(parsed, Critique):  # a critique that was refused for its quotes keeps their counts
                meta |= {"unmatched": parsed.quotes.unmatched, "lost": list(parsed.lost)}
                meta["dropped_spans"] = len(parsed.spans)
            return judgement.model_copy(update={"meta": meta})
        text = self._human_text(*pair)
        return judgement.model_copy(update={"text": text, "score": None}) if text else judgement

    def _human_text(self, example: Example, response: str) -> str:
        """Return the human feedback to place in the response; empty if the chat judges it."""
        return human_feedback_on(example, response) if self._anchor else ""

    def _prompt_for(self, example: Example, response: str) -> Prompt:
        if self._anchor and self._human_text(example, response):
            return self._anchor
        outcome = example.meta.get("outcome")
        is_tested = outcome in get_args(Outcome) and outcome not in NO_VERDICT
        return self._tested if self._tested and is_tested else self._prompt


class Tagger(Protocol):
    """A model that labels responses within the judge's prompts (`policy.heads.tagger`)."""

    overlap: Overlap

    def excess(self, conversation: Sequence[Message]) -> int:
        """Return the tokens beyond the model's context; 0 or less if the conversation fits."""
        ...

    def tag(self, conversations: Sequence[Sequence[Message]], texts: Sequence[str]) -> list[Completion | Failure]:
        """Return labelled places and a verdict for every response `texts[i]`, without words."""
        ...


class TaggerCritic:
    """A reward model without generated text: a head labels the response in the prompt."""

    def __init__(self, tagger: Tagger, prompt: str, source: Source) -> None:
        self.tagger, self.source = tagger, source
        self.overlap = tagger.overlap
        self.tokens = 0.0  # tokens read so far
        self._prompt = prompt

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        """Return a critique without text per response; one that does not fit is a failure."""
        pairs = zip(examples, responses, strict=True)
        conversations = [fitted_messages(self._prompt, *pair, self.tagger.excess) for pair in pairs]
        answers = self.tagger.tag(conversations, responses)
        return [self._judgement(*pair) for pair in zip(answers, responses, strict=True)]

    def _judgement(self, answer: Completion | Failure, response: str) -> Judgement:
        if isinstance(answer, Failure):
            return answer
        self.tokens += sum(token_counts(answer).values())
        return Critique(text="", spans=spans_at(answer.spans or (), response), score=answer.score)


def token_counts(answer: Answer) -> dict[str, int]:
    """Return the input and output tokens of a request by name, if the chat reports them."""
    usage = answer.usage if isinstance(answer, Completion) else {}
    return {name: int(count) for name, count in usage.items() if name.endswith("tokens")}


def _opened_critic(settings: object, ready: Ready) -> Critic:
    """Return the endpoint or reward model that the run has opened."""
    assert ready.critic is not None
    return ready.critic


PROMPTED = CriticSpec(
    "prompted",
    make=_opened_critic,
    settings=PromptedSettings,
    operational=("concurrency", "prices", "budget_usd"),
    source="llm",
    reference_free=True,
    about="any OpenAI-compatible endpoint",
)
REWARD_MODEL = CriticSpec(
    "reward_model",
    make=_opened_critic,
    settings=RewardModelCriticSettings,
    operational=("gate",),
    reads=("reward_model.max_new_tokens", "reward_model.kind", "reward_model.grounded"),
    files=lambda settings, folder: {
        "the reward model": settings.folder or folder / "reward_model" / "policy",
    },
    measures_with=lambda ready: ready.critic,
    source="reward_model",
    reference_free=True,
    about="the trained reward model",
)
