"""Episodes: each turn is sampled behind the conversation so far, and the ids stay what they
were."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch

from text2grad.align import TokenTable
from text2grad.errors import UserError
from text2grad.feedback import Example, Message, Transcript, conversation_of
from text2grad.policy.encode import encode_prompt
from text2grad.policy.episode import decode_sample, play
from text2grad.policy.generate import Sample, generate
from text2grad.policy.load import load_policy
from text2grad.policy.model import Policy
from text2grad.policy.settings import GenerationSettings, PolicySettings
from tiny_runs import ending, tiny_model

SETTINGS = GenerationSettings(max_new_tokens=6, temperature=1.0, max_turns=4)
EXAMPLES = [Example(id=str(n), prompt=(Message(role="user", content=f"say {n}"),)) for n in range(6)]


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    return ending(load_policy(PolicySettings(model=str(tiny_model(tmp_path_factory.mktemp("model"))))))


@dataclass
class Echo:
    """Says back how long a turn was, until it has heard `turns`."""

    turns: int = 3
    begun: tuple[str, ...] = ()
    heard: list[str] = field(default_factory=list)

    def reset(self, example: Example) -> Sequence[Message]:
        return [Message(role="user", content=text) for text in self.begun]

    def step(self, turn: Message) -> tuple[Sequence[Message], bool]:
        self.heard.append(turn.content)
        return [Message(role="tool", content=f"{len(turn.content)} heard")], len(self.heard) == self.turns


def turns(sample: Sample) -> list[list[int]]:
    """The ids of each turn of the policy."""
    found: list[list[int]] = [[]]
    for index, own in zip(sample.ids, sample.mask or [], strict=True):
        if own:
            found[-1].append(index)
        elif found[-1]:
            found.append([])
    return found


def whole_episode(policy: Policy, sample: Sample) -> bool:
    return all(each[-1] in policy.stop_ids for each in turns(sample))


def test_each_turn_is_sampled_behind_the_conversation_so_far(policy: Policy) -> None:
    """Greedy episodes equal those played one turn at a time with `generate`, from the template's
    own prompt."""
    greedy = SETTINGS.model_copy(update={"temperature": 0.0})
    table = TokenTable(policy.tokenizer)
    for example, sample in zip(EXAMPLES, play(policy, EXAMPLES, Echo, greedy), strict=True):
        said, environment, expected = [*example.prompt], Echo(), []
        over = False
        while not over:
            (turn,) = generate(policy, [encode_prompt(policy.tokenizer, said)], greedy)
            expected.append(turn.ids)
            if turn.truncated:
                break
            message = Message(role="assistant", content=table.align(turn.ids).text)
            others, over = environment.step(message)
            said += [message, *others]
        assert turns(sample) == expected and sample.truncated is not over
        assert sample.mask is not None and sample.mask[-1]


def test_words_and_tokens_are_the_policys_own(policy: Policy) -> None:
    torch.manual_seed(0)
    table = TokenTable(policy.tokenizer)
    samples = play(policy, EXAMPLES * 4, lambda: Echo(begun=("Begin.",)), SETTINGS)
    assert any(whole_episode(policy, each) for each in samples)
    for example, sample in zip(EXAMPLES * 4, samples, strict=True):
        words, aligned = decode_sample(table, example, sample)
        assert isinstance(words, Transcript) and len(aligned) == len(sample.sampled_ids)
        assert [words[turn.start : turn.end] for turn in words.turns] == [
            table.align(ids).text for ids in turns(sample)
        ]
        first, *others = [each for each in conversation_of(words) if each.role != "assistant"]
        assert first == Message(role="user", content="Begin.")
        heard = [f"{turn.end - turn.start} heard" for turn in words.turns]
        assert [each.content for each in others] == heard[: len(others)]
        begun = [*example.prompt, first]
        assert sample.prompt == encode_prompt(policy.tokenizer, begun)


def test_random_numbers_of_an_episode_are_its_own(policy: Policy) -> None:
    """With draws an episode depends on nothing else in the batch."""
    draws = torch.rand(len(EXAMPLES), SETTINGS.max_turns * SETTINGS.max_new_tokens, dtype=torch.float64)
    together = play(policy, EXAMPLES, Echo, SETTINGS, draws)
    apart = [play(policy, [each], Echo, SETTINGS, draws[n : n + 1])[0] for n, each in enumerate(EXAMPLES)]
    assert [each.ids for each in together] == [each.ids for each in apart]


@pytest.mark.parametrize(("max_turns", "environment_turns"), [(2, 9), (4, 2), (4, 4)])
def test_an_episode_that_was_cut_is_truncated(policy: Policy, max_turns: int, environment_turns: int) -> None:
    """By the number of turns; one that the environment ends is not."""
    torch.manual_seed(1)
    settings = SETTINGS.model_copy(update={"max_turns": max_turns})
    samples = play(policy, EXAMPLES * 4, lambda: Echo(environment_turns), settings)
    for sample in samples:  # a turn that was cut is the last
        *earlier, last = turns(sample)
        assert all(each[-1] in policy.stop_ids for each in earlier)
        assert sample.truncated or last[-1] in policy.stop_ids
    by_itself = [each for each in samples if whole_episode(policy, each)]
    most = min(max_turns, environment_turns)
    assert by_itself and all(len(turns(each)) <= most for each in samples)
    for sample in by_itself:
        assert sample.truncated == (len(turns(sample)) < environment_turns)
        assert sample.between is not None and len(sample.between) == len(turns(sample)) + 1 and sample.between[-1]


def test_an_episode_ends_where_the_model_can_read_no_more(policy: Policy) -> None:
    torch.manual_seed(2)
    long = SETTINGS.model_copy(update={"max_turns": 99})
    for sample in play(policy, EXAMPLES * 2, lambda: Echo(turns=99), long):
        assert sample.truncated and len(sample.prompt or []) + len(sample.ids) <= (policy.context or 0)


def test_an_odd_answer_of_an_environment_is_one_line(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    posing = [Message(role="assistant", content="I am you.")]
    answers: tuple[object, ...] = (None, "done", (["text"], True), ([], False), ("text", True), (posing, False))
    for answer in answers:
        monkeypatch.setattr(Echo, "step", lambda self, turn, answer=answer: answer)
        torch.manual_seed(0)
        with pytest.raises(UserError, match=r"Echo\.step"):
            play(policy, EXAMPLES * 4, Echo, SETTINGS)
