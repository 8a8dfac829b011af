"""A local model as a chat endpoint: how the trained reward model answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from text2grad.chat import Completion
from text2grad.feedback import Failure, Message, Overlap
from text2grad.policy.encode import encode_prompt
from text2grad.policy.generate import Sample, generate
from text2grad.policy.grounded import GroundedAnswers, Vocabulary
from text2grad.policy.model import Policy
from text2grad.policy.settings import SamplingSettings
from text2grad.wire.quotable import keep_resolved


class LocalChat:
    """A model of this process as a chat endpoint: how the trained reward model answers (see `chat.Chat`).

    With a `vocabulary`, answers about a text are grounded in it (see `policy.grounded`). `usage` sums the tokens of
    all answers. `counted` takes the number of answers to write and returns a `progress` for `generate`.
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
        """Answer each conversation; one that leaves no room for an answer is a typed failure, never cut."""
        return self._answer(conversations, None)

    def complete_about(
        self, conversations: Sequence[Sequence[Message]], texts: Sequence[str]
    ) -> list[Completion | Failure]:
        """The same, where answer i is a critique of `texts[i]`."""
        return self._answer(conversations, texts if self._vocabulary else None)

    def _answer(
        self, conversations: Sequence[Sequence[Message]], texts: Sequence[str] | None
    ) -> list[Completion | Failure]:
        prompts = [tuple(encode_prompt(self.policy.tokenizer, messages)) for messages in conversations]
        # Greedy answers to equal questions are equal, so each is generated once; samples differ by number.
        numbers = range(len(prompts)) if self.settings.temperature > 0 else [0] * len(prompts)
        questions = list(zip(prompts, texts or [""] * len(prompts), numbers, strict=True))
        limit, room = self.policy.context, self.settings.max_new_tokens
        fits = [each for each in dict.fromkeys(questions) if limit is None or len(each[0]) + room <= limit]
        grounding = None
        if texts is not None and self._vocabulary:
            about = [text for _, text, _ in fits]
            grounding = GroundedAnswers(self._vocabulary, about, self.settings)
        progress = self._counted(len(fits))
        samples = generate(self.policy, [ids for ids, _, _ in fits], self.settings, grounding, progress=progress)
        forced = grounding.forced if grounding else [False] * len(fits)
        written = zip(fits, samples, forced, strict=True)
        answers = {each: self._completion(each[0], sample, closed) for each, sample, closed in written}
        if grounding:
            answers = {each: _resolving(answer, each[1]) for each, answer in answers.items()}
        for answer in answers.values():
            self.usage.update({name: int(count) for name, count in answer.usage.items()})
        return [
            answers.get(each)
            or Failure(
                kind="unsupported",
                message=f"{len(each[0])} prompt and {room} new tokens exceed the context of {limit}",
            )
            for each in questions
        ]

    def _completion(self, prompt: Sequence[int], sample: Sample, forced: bool) -> Completion:
        text = self.policy.tokenizer.decode(
            sample.ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        usage = {"input_tokens": float(len(prompt)), "output_tokens": float(len(sample.ids))}
        return Completion(text=text, truncated=sample.truncated, forced=forced, score=sample.verdict, usage=usage)


def _resolving(answer: Completion, text: str) -> Completion:
    """An answer about a text without the quotes that do not resolve."""
    return answer if answer.truncated else answer.model_copy(update={"text": keep_resolved(answer.text, text)})
