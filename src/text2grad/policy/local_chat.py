"""A local model as a chat endpoint, used for trained reward models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from text2grad.chat import Completion
from text2grad.feedback import Failure, Message, Overlap
from text2grad.policy.encode import count_excess, encode_prompt
from text2grad.policy.generate import generate
from text2grad.policy.grounded import GroundedAnswers, Vocabulary
from text2grad.policy.model import Policy
from text2grad.policy.settings import SamplingSettings
from text2grad.wire.quotable import drop_unresolved


class LocalChat:
    """A model in this process as a chat endpoint (see `chat.Chat`).

    Args:
        policy: the model.
        settings: how answers are sampled.
        name: the model's name in records and messages.
        vocabulary: its tokens as bytes, to ground answers in the judged text (`policy.grounded`).
        make_progress: takes the number of answers and returns a `progress` for `generate`.

    Attributes:
        usage: the token counts of all answers.
    """

    def __init__(
        self,
        policy: Policy,
        settings: SamplingSettings,
        name: str,
        vocabulary: Vocabulary | None = None,
        make_progress: Callable[[int], Callable[[float], None]] = lambda total: lambda count: None,
    ) -> None:
        self.policy = policy
        self.overlap: Overlap = "never" if policy.adapter else "allowed"
        self.settings = settings
        self.name = name
        self._vocabulary = vocabulary
        self._make_progress = make_progress
        self.usage: Counter[str] = Counter()

    def excess(self, conversation: Sequence[Message]) -> int:
        """Return the tokens by which a conversation and a full answer exceed the context."""
        room = self.settings.max_new_tokens
        return count_excess(self.policy.tokenizer, conversation, self.policy.context, room)

    def complete(self, conversations: Sequence[Sequence[Message]]) -> list[Completion | Failure]:
        """Answer each conversation; return a failure for one that leaves no room for an answer."""
        return self._answer(conversations, [None] * len(conversations))

    def complete_about(
        self, conversations: Sequence[Sequence[Message]], texts: Sequence[str]
    ) -> list[Completion | Failure]:
        """Answer each conversation with a critique of `texts[i]`."""
        return self._answer(conversations, texts if self._vocabulary else [None] * len(texts))

    def _answer(
        self, conversations: Sequence[Sequence[Message]], texts: Sequence[str | None]
    ) -> list[Completion | Failure]:
        tokenizer, limit, room = self.policy.tokenizer, self.policy.context, self.settings.max_new_tokens
        prompts = [tuple(encode_prompt(tokenizer, messages)) for messages in conversations]
        # Equal greedy answers are generated once. Sampled ones differ, so their keys are numbered.
        numbers = range(len(prompts)) if self.settings.temperature > 0 else [0] * len(prompts)
        questions = list(zip(prompts, texts, numbers, strict=True))
        fitting = [key for key in dict.fromkeys(questions) if limit is None or len(key[0]) + room <= limit]
        about = [text for _, text, _ in fitting if text is not None]
        grounding = GroundedAnswers(self._vocabulary, about, self.settings) if self._vocabulary and about else None
        progress = self._make_progress(len(fitting))
        samples = generate(self.policy, [ids for ids, _, _ in fitting], self.settings, grounding, progress=progress)
        forced = grounding.forced if grounding else [False] * len(fitting)
        answers: dict[tuple[tuple[int, ...], str | None, int], Completion] = {}
        for key, sample, was_forced in zip(fitting, samples, forced, strict=True):
            words = tokenizer.decode(sample.ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
            if key[1] is not None and not sample.truncated:
                words = drop_unresolved(words, key[1])
            usage = {"input_tokens": float(len(key[0])), "output_tokens": float(len(sample.ids))}
            self.usage.update({name: int(count) for name, count in usage.items()})
            answers[key] = Completion(
                text=words, truncated=sample.truncated, forced=was_forced, score=sample.verdict, usage=usage
            )

        def too_long(ids: tuple[int, ...]) -> Failure:
            message = f"{len(ids)} prompt and {room} new tokens exceed the context of {limit}"
            return Failure(kind="unsupported", message=message)

        return [answers[key] if key in answers else too_long(key[0]) for key in questions]
