"""Episodes: the policy speaks, an environment answers, turn after turn, as one sequence of ids.

The policy's ids stay as they were sampled. Between its turns stand the ids of what the chat
template writes around the words of others, once and for all: what was read or sampled is never
tokenised again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from text2grad.align import Aligned, TokenTable
from text2grad.align.trajectory import Trajectory, read_policy_tokens
from text2grad.errors import UserError, warn_once
from text2grad.feedback import Environment, Example, Message, turns_of
from text2grad.named import call_user_code, refuse_result
from text2grad.policy.encode import TEMPLATE, check_lengths, encode_between, encode_prompt, encode_target
from text2grad.policy.generate import Sample, generate
from text2grad.policy.model import Policy
from text2grad.policy.settings import GenerationSettings

MESSAGES = "return a list of text2grad.Message"
MakeEnvironment = Callable[[], Environment]
"""Makes the environment of one episode, before its `reset`."""


class Thread:
    """A growing conversation with the policy, in words and in ids.

    `prompt` are the ids before the policy's first turn, `ids` all after it, and `mask` is True at
    those of the policy. `between` are the messages of others before each turn since `prompt`. Where
    the chat template writes earlier turns in another way once they are answered, the model reads
    them so: the conversation so far becomes the prompt of the next turn, and only what follows can
    be trained. Lists are replaced, never changed in place, so that a shallow copy is a copy.
    """

    def __init__(self, tokenizer: Any, prompt: Sequence[Message], begun: Sequence[Message] = ()) -> None:
        self._tokenizer = tokenizer
        self._asked: list[Message] = [*prompt, *begun]  # the conversation before the next turn
        self.prompt = encode_prompt(tokenizer, self._asked)
        self.ids: list[int] = []
        self.mask: list[bool] = []
        self.between: list[tuple[Message, ...]] = [tuple(begun)]

    @property
    def whole(self) -> list[int]:
        """All ids, as the model reads them."""
        return [*self.prompt, *self.ids]

    def add_turn(self, ids: Sequence[int]) -> None:
        """Append a turn of the policy, as it was sampled."""
        self.ids = [*self.ids, *ids]
        self.mask = [*self.mask, *[True] * len(ids)]

    def add_answer(self, words: str, others: Sequence[Message]) -> None:
        """Append the answer of others to the last turn, whose `words` are read off its ids."""
        turn = Message(role="assistant", content=words)
        ids = encode_between(self._tokenizer, self._asked, words, others)
        self._asked = [*self._asked, turn, *others]
        if ids is not None:
            if ids[:1] == self.ids[-1:]:  # of some models the token that begins another's turn ends their own
                ids = ids[1:]
            self.ids = [*self.ids, *ids]
            self.mask = [*self.mask, *[False] * len(ids)]
            self.between = [*self.between, tuple(others)]
            return
        warn_once(
            "the chat template writes earlier turns of the policy in another way once they are answered (it leaves"
            f" out reasoning, say): only the last turn of a transcript can be trained; {TEMPLATE}, one that leaves"
            " them as they are, trains all"
        )
        self.between = [(*itertools.chain.from_iterable(self.between), turn, *others)]
        self.prompt, self.ids, self.mask = encode_prompt(self._tokenizer, self._asked), [], []


def encode_turns(
    tokenizer: Any, prompt: Sequence[Message], response: str, sampled: Sequence[Sequence[int]] = ()
) -> Thread:
    """Return a recorded transcript as token ids; `sampled`: the ids of each of its turns, if they
    are known.

    Raises:
        UserError: see `encode_target` and `encode_between`.
    """
    turns = turns_of(response)
    words = [response[turn.start : turn.end] for turn in turns]
    table = TokenTable(tokenizer) if sampled else None
    thread = Thread(tokenizer, prompt, turns[0].messages)
    for number, turn in enumerate(turns):
        if number:
            thread.add_answer(words[number - 1], turn.messages)
        known = list(sampled[number]) if number < len(sampled) else []
        kept = known and table is not None and table.align(known).text == words[number]
        thread.add_turn(known if kept else encode_target(tokenizer, words[number]))
    return thread


@dataclass
class Episode:
    """An unfinished episode; `after` is the answer of others to its last turn."""

    environment: Environment
    thread: Thread
    over: bool = False
    truncated: bool = False
    after: tuple[Message, ...] = field(default=())

    @classmethod
    def begin(cls, tokenizer: Any, example: Example, make: MakeEnvironment) -> Episode:
        """Make the environment of an example and reset it; its messages open the episode.

        Raises:
            UserError: it answers in another shape, or the chat template refuses its turns.
        """
        environment = call_user_code("make the environment of one episode", make)
        messages = _messages(environment, "reset", call_user_code(MESSAGES, environment.reset, example))
        return cls(environment, Thread(tokenizer, example.prompt, messages))

    def take(self, sample: Sample, words: str, has_room: Callable[[Thread], bool]) -> None:
        """Append a sampled turn and the environment's answer; truncated where there is no room for
        another turn."""
        self.thread.add_turn(sample.ids)
        if sample.truncated:
            self.over = self.truncated = True
            return
        self.after, self.over = _answer(self.environment, Message(role="assistant", content=words))
        if not self.over:
            longer = copy(self.thread)
            longer.add_answer(words, self.after)
            if has_room(longer):
                self.thread, self.after = longer, ()
            else:
                self.over = self.truncated = True

    def sample(self) -> Sample:
        """Return the episode up to the last token of the policy."""
        thread = self.thread
        return Sample(thread.ids, self.truncated, None, thread.mask, [*thread.between, self.after], thread.prompt)


def play(
    policy: Policy,
    examples: Sequence[Example],
    make: MakeEnvironment,
    settings: GenerationSettings,
    draws: Tensor | None = None,
    progress: Callable[[float], None] = lambda count: None,
    turns: Callable[..., list[Sample]] = generate,
) -> list[Sample]:
    """Play one episode per example; `turns` samples the turns of all unfinished episodes together.

    `draws` (N, max_turns * max_new_tokens) as in `generate`, those of one turn after the other. An
    episode that has no room for one more turn of `max_new_tokens` ends, and so does one whose turn
    was cut.

    Raises:
        UserError: the environment answers in another shape, or the chat template refuses its turns.
        NotFinite: see `generate`.
    """
    table, tokens = TokenTable(policy.tokenizer), settings.max_new_tokens
    episodes = [Episode.begin(policy.tokenizer, example, make) for example in examples]
    prompts = [(each.id, episode.thread.prompt) for each, episode in zip(examples, episodes, strict=True)]
    check_lengths(prompts, policy.context, tokens)

    def has_room(thread: Thread) -> bool:
        return policy.context is None or len(thread.whole) + tokens <= policy.context

    for turn in range(settings.max_turns):
        last = turn + 1 == settings.max_turns
        rows = [row for row, episode in enumerate(episodes) if not episode.over]
        if not rows:
            break
        chances = None if draws is None else draws[rows, turn * tokens : (turn + 1) * tokens]
        found = turns(policy, [episodes[row].thread.whole for row in rows], settings, draws=chances)
        for row, sample in zip(rows, found, strict=True):
            episodes[row].take(sample, table.align(sample.ids).text, (lambda _: False) if last else has_room)
        progress(float(sum(episode.over for episode in episodes)))
    return [episode.sample() for episode in episodes]


def words_and_tokens(table: TokenTable, example: Example, sample: Sample) -> tuple[str, Aligned]:
    """Return the policy's words, a `Transcript` where others spoke too, and the characters of each
    token."""
    if sample.mask is None:
        aligned = table.align(sample.ids)
        return aligned.text, aligned
    own = read_policy_tokens(table, Trajectory(example, sample.ids, sample.mask, sample.between))
    return own.response, own.aligned


def _answer(environment: Environment, turn: Message) -> tuple[tuple[Message, ...], bool]:
    expects = "return messages, and whether the episode is over"
    answer = call_user_code(expects, environment.step, turn)
    if not (isinstance(answer, tuple) and len(answer) == 2):
        refuse_result(expects, environment, "step", answer)
    others, over = _messages(environment, "step", answer[0]), bool(answer[1])
    if not (others or over):
        raise UserError(f"{type(environment).__name__}.step gave nothing", "say something, or end the episode")
    return others, over


def _messages(environment: Environment, method: str, messages: Any) -> tuple[Message, ...]:
    if not isinstance(messages, Sequence) or not all(isinstance(each, Message) for each in messages):
        refuse_result(MESSAGES, environment, method, messages)
    if any(each.role == "assistant" for each in messages):
        problem = f"{type(environment).__name__}.{method} gave a message of the assistant"
        raise UserError(problem, "only the policy speaks as the assistant")
    return tuple(messages)
