"""A local model as a chat endpoint: how the trained reward model answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from text2grad.chat import Completion
from text2grad.feedback import Failure, Message, Overlap
from text2grad.policy.encode import encode_prompt
from text2grad.policy.generate import generate
from text2grad.policy.grounded import GroundedAnswers, Vocabulary
from text2grad.policy.model import Policy
from text2grad.policy.settings import SamplingSettings
from text2grad.wire.quotable import drop_unresolved


class LocalChat:
    """A model of this process as a chat endpoint: how the trained reward model answers (see
    `chat.Chat`).

    With a `vocabulary`, answers about a text are grounded in it (see `policy.grounded`). `usage`
    sums the tokens of all answers.

    Args:
        policy: the model.
        settings: of its sampling.
        name: its name in records and messages.
        vocabulary: the model's tokens as bytes, for grounded answers.
        counted: takes the number of answers to write, and returns a `progress` for `generate`.
    """

    def __init__(
        self,
        policy: Policy,
        settings: SamplingSettings,
        name: str,
        vocabulary: Vocabulary | None = None,
        counted: Callable[[int], Callable[[float], None]] = lambda total: lambda count: None,
    ) -> None:
        self.policy = policy
        self.overlap: Overlap = "never" if policy.adapter else "allowed"
        self.settings = settings
        self.name = name
        self._vocabulary = vocabulary
        self._counted = counted
        self.usage: Counter[str] = Counter()

    def excess(self, conversation: Sequence[Message]) -> int:
        """Tokens by which the conversation with a full answer exceeds the model's context."""
        length = len(encode_prompt(self.policy.tokenizer, conversation)) + self.settings.max_new_tokens
        limit = self.policy.context
        return 0 if limit is None else length - limit

    def complete(self, conversations: Sequence[Sequence[Message]]) -> list[Completion | Failure]:
        """Answer each conversation; one that leaves no room for an answer is a typed failure, never
        cut."""
        return self._answer(conversations, [None] * len(conversations))

    def complete_about(
        self, conversations: Sequence[Sequence[Message]], texts: Sequence[str]
    ) -> list[Completion | Failure]:
        """Answer each conversation, where answer i is a critique of `texts[i]`."""
        return self._answer(conversations, texts if self._vocabulary else [None] * len(texts))

    def _answer(
        self, conversations: Sequence[Sequence[Message]], texts: Sequence[str | None]
    ) -> list[Completion | Failure]:
        tokenizer, limit, room = self.policy.tokenizer, self.policy.context, self.settings.max_new_tokens
        prompts = [tuple(encode_prompt(tokenizer, messages)) for messages in conversations]
        # Greedy answers to equal questions are equal, so each is generated once; samples differ by
        # number.
        numbers = range(len(prompts)) if self.settings.temperature > 0 else [0] * len(prompts)
        questions = list(zip(prompts, texts, numbers, strict=True))
        fitting = [key for key in dict.fromkeys(questions) if limit is None or len(key[0]) + room <= limit]
        about = [text for _, text, _ in fitting if text is not None]
        grounding = GroundedAnswers(self._vocabulary, about, self.settings) if self._vocabulary and about else None
        progress = self._counted(len(fitting))
        samples = generate(self.policy, [ids for ids, _, _ in fitting], self.settings, grounding, progress=progress)
        forced = grounding.forced if grounding else [False] * len(fitting)
        answers: dict[tuple[tuple[int, ...], str | None, int], Completion] = {}
        for key, sample, closed in zip(fitting, samples, forced, strict=True):
            words = tokenizer.decode(sample.ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
            if key[1] is not None and not sample.truncated:
                words = drop_unresolved(words, key[1])
            usage = {"input_tokens": float(len(key[0])), "output_tokens": float(len(sample.ids))}
            self.usage.update({name: int(count) for name, count in usage.items()})
            answers[key] = Completion(
                text=words, truncated=sample.truncated, forced=closed, score=sample.verdict, usage=usage
            )
        return [answers[key] if key in answers else _too_long(len(key[0]), room, limit) for key in questions]


def _too_long(length: int, room: int, limit: int | None) -> Failure:
    message = f"{length} prompt and {room} new tokens exceed the context of {limit}"
    return Failure(kind="unsupported", message=message)
