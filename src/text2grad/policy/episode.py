"""Episodes: turns of the policy and of an environment as one sequence of ids.

Sampled ids are kept, and the ids between the policy's turns are encoded once. So the model is
trained on exactly the tokens that it read and sampled.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from text2grad.align import Aligned, TokenTable, get_table
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
"""Makes the environment of one episode."""


class Dialogue:
    """A growing conversation with the policy, as messages and as ids.

    Some chat templates rewrite earlier turns once they are answered. Then the conversation so far
    becomes the prompt of the next turn, and only the turns after it can be trained. Attributes are
    reassigned, never changed in place, so a shallow copy is independent.

    Attributes:
        prompt: the ids before the policy's first trainable turn.
        ids: all ids after the prompt.
        mask: True at the ids of the policy.
        between: the messages of others before each turn after the prompt.
    """

    def __init__(self, tokenizer: Any, prompt: Sequence[Message], opening: Sequence[Message] = ()) -> None:
        self._tokenizer = tokenizer
        self._messages: list[Message] = [*prompt, *opening]  # before the next turn
        self.prompt = encode_prompt(tokenizer, self._messages)
        self.ids: list[int] = []
        self.mask: list[bool] = []
        self.between: list[tuple[Message, ...]] = [tuple(opening)]

    @property
    def all_ids(self) -> list[int]:
        """All ids that the model has read or sampled."""
        return [*self.prompt, *self.ids]

    def add_turn(self, ids: Sequence[int]) -> None:
        """Append the sampled ids of a turn of the policy."""
        self.ids = [*self.ids, *ids]
        self.mask = [*self.mask, *[True] * len(ids)]

    def add_answer(self, words: str, others: Sequence[Message]) -> None:
        """Append the answer of others to the policy's last turn, whose text is `words`."""
        turn = Message(role="assistant", content=words)
        ids = encode_between(self._tokenizer, self._messages, words, others)
        self._messages = [*self._messages, turn, *others]
        if ids is not None:
            if ids[:1] == self.ids[-1:]:  # some templates begin a turn with the token that ended the last
                ids = ids[1:]
            self.ids = [*self.ids, *ids]
            # Read by the model, and in no reward, loss or mean: the policy did not choose them.
            self.mask = [*self.mask, *[False] * len(ids)]
            self.between = [*self.between, tuple(others)]
            return
        warn_once(
            "the chat template rewrites earlier turns of the policy once they are answered (it may leave out"
            " reasoning): only the last turn of a transcript can be trained; to train all turns, use a template"
            f" that keeps them: {TEMPLATE}"
        )
        self.between = [(*itertools.chain.from_iterable(self.between), turn, *others)]
        self.prompt, self.ids, self.mask = encode_prompt(self._tokenizer, self._messages), [], []


def encode_turns(
    tokenizer: Any, prompt: Sequence[Message], response: str, sampled: Sequence[Sequence[int]] = ()
) -> Dialogue:
    """Encode a recorded transcript.

    Args:
        prompt: the messages before the transcript.
        response: a text, or a `Transcript` with several turns.
        sampled: the recorded ids of each turn, which are used if they decode to its text.

    Raises:
        UserError: see `encode_target` and `encode_between`.
    """
    turns = turns_of(response)
    words = [response[turn.start : turn.end] for turn in turns]
    dialogue = Dialogue(tokenizer, prompt, turns[0].messages)
    for number, turn in enumerate(turns):
        if number:
            dialogue.add_answer(words[number - 1], turn.messages)
        recorded = list(sampled[number]) if number < len(sampled) else []
        is_valid = recorded and get_table(tokenizer).align(recorded).text == words[number]
        dialogue.add_turn(recorded if is_valid else encode_target(tokenizer, words[number]))
    return dialogue


@dataclass
class Episode:
    """The state of an episode; `after` is the environment's answer to the last turn."""

    environment: Environment
    dialogue: Dialogue
    over: bool = False
    truncated: bool = False
    after: tuple[Message, ...] = field(default=())

    @classmethod
    def start(cls, tokenizer: Any, example: Example, make: MakeEnvironment) -> Episode:
        """Make an environment and reset it for an example.

        Raises:
            UserError: the environment returns something else than messages, or the chat template
                refuses them.
        """
        environment = call_user_code("make the environment of one episode", make)
        messages = _check_messages(environment, "reset", call_user_code(MESSAGES, environment.reset, example))
        return cls(environment, Dialogue(tokenizer, example.prompt, messages))

    def advance(self, sample: Sample, words: str, has_room: Callable[[Dialogue], bool]) -> None:
        """Append a sampled turn and the environment's answer; end without room for another turn."""
        self.dialogue.add_turn(sample.ids)
        if sample.truncated:
            self.over = self.truncated = True
            return
        self.after, self.over = _step(self.environment, Message(role="assistant", content=words))
        if not self.over:
            longer = copy(self.dialogue)
            longer.add_answer(words, self.after)
            if has_room(longer):
                self.dialogue, self.after = longer, ()
            else:
                self.over = self.truncated = True

    def sample(self) -> Sample:
        """Return the episode up to the last token of the policy."""
        return Sample(
            self.dialogue.ids,
            self.truncated,
            mask=self.dialogue.mask,
            between=[*self.dialogue.between, self.after],
            prompt=self.dialogue.prompt,
        )


def play(
    policy: Policy,
    examples: Sequence[Example],
    make: MakeEnvironment,
    settings: GenerationSettings,
    draws: Tensor | None = None,
    progress: Callable[[float], None] = lambda count: None,
    sample_turns: Callable[..., list[Sample]] = generate,
) -> list[Sample]:
    """Play one episode per example.

    An episode is truncated if a turn is cut or if there is no room for another turn of
    `max_new_tokens`.

    Args:
        make: makes the environment of each episode.
        draws: (N, max_turns * max_new_tokens), as in `generate`, turn after turn.
        progress: receives the number of finished episodes after each turn.
        sample_turns: samples the turns of all unfinished episodes together.

    Raises:
        UserError: an environment returns something else than messages, or the chat template refuses
            them.
        NotFinite: see `generate`.
    """
    table, tokens = get_table(policy.tokenizer), settings.max_new_tokens
    episodes = [Episode.start(policy.tokenizer, example, make) for example in examples]
    starts = zip(examples, episodes, strict=True)
    prompts = [(example.id, episode.dialogue.prompt) for example, episode in starts]
    check_lengths(prompts, policy.context, tokens)

    def has_room(dialogue: Dialogue) -> bool:
        return policy.context is None or len(dialogue.all_ids) + tokens <= policy.context

    for turn in range(settings.max_turns):
        last = turn + 1 == settings.max_turns
        rows = [row for row, episode in enumerate(episodes) if not episode.over]
        if not rows:
            break
        turn_draws = None if draws is None else draws[rows, turn * tokens : (turn + 1) * tokens]
        prompt_ids = [episodes[row].dialogue.all_ids for row in rows]
        samples = sample_turns(policy, prompt_ids, settings, draws=turn_draws)
        for row, sample in zip(rows, samples, strict=True):
            episodes[row].advance(sample, table.align(sample.ids).text, (lambda _: False) if last else has_room)
        progress(float(sum(episode.over for episode in episodes)))
    return [episode.sample() for episode in episodes]


def decode_sample(table: TokenTable, example: Example, sample: Sample) -> tuple[str, Aligned]:
    """Return the text of a sample (a `Transcript` for episodes) and each token's characters."""
    if sample.mask is None:
        aligned = table.align(sample.ids)
        return aligned.text, aligned
    policy_tokens = read_policy_tokens(table, Trajectory(example, sample.ids, sample.mask, sample.between))
    return policy_tokens.response, policy_tokens.aligned


def _step(environment: Environment, turn: Message) -> tuple[tuple[Message, ...], bool]:
    expects = "return messages, and whether the episode is over"
    answer = call_user_code(expects, environment.step, turn)
    if not (isinstance(answer, tuple) and len(answer) == 2):
        refuse_result(expects, environment, "step", answer)
    others, over = _check_messages(environment, "step", answer[0]), bool(answer[1])
    if not (others or over):
        raise UserError(
            f"{type(environment).__name__}.step returned nothing", "return a message or end the episode"
        )
    return others, over


def _check_messages(environment: Environment, method: str, messages: Any) -> tuple[Message, ...]:
    if not isinstance(messages, Sequence) or not all(isinstance(message, Message) for message in messages):
        refuse_result(MESSAGES, environment, method, messages)
    if any(message.role == "assistant" for message in messages):
        problem = f"{type(environment).__name__}.{method} returned a message of the assistant"
        raise UserError(problem, "only the policy speaks as the assistant")
    return tuple(messages)
