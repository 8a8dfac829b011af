"""Learning from records of several turns: the policy's turns are trained, and what stands between
them is read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from text2grad.align import CreditSettings
from text2grad.feedback import Critique, Message, Span, Transcript, turns_of
from text2grad.policy.encode import encode_prompt, encode_target
from text2grad.policy.load import load_policy
from text2grad.policy.model import Policy
from text2grad.policy.settings import PolicySettings
from text2grad.train import offline
from text2grad.train.offline import LoggedAnswer, add_start_logps, encode_logged
from text2grad.train.pairs import Pair, encode_pairs
from text2grad.train.passes import PassSize
from text2grad.train.settings import SupervisedSettings
from text2grad.train.supervised import accumulate_gradient
from tiny_runs import tiny_model

ASK = (Message(role="user", content="How many?"),)
TRAINING = SupervisedSettings(epochs=2, batch_size=2, micro_batch_size=1, lr=1e-2)


def tool(*texts: str) -> list[Message]:
    return [Message(role="tool", content=text) for text in texts]


def transcript(*turns: str, said: str = "it is well said") -> Transcript:
    return Transcript.of((tool(said) if number else [], words) for number, words in enumerate(turns))


TURNS = transcript("look up lamps", "answer 7")
OTHER = transcript("open it", "look up 3", "answer 3", said="no")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"), context=256)


@pytest.fixture
def policy(model: Path) -> Policy:
    torch.manual_seed(0)
    return load_policy(PolicySettings(model=str(model))).eval()


def own_logps(policy: Policy, response: str) -> torch.Tensor:
    """log p of each token of the policy's turns, from the model's own forward on each turn behind
    all before it."""
    said, found = [*ASK], []
    for turn in turns_of(response):
        said += turn.messages
        words = response[turn.start : turn.end]
        prompt, target = encode_prompt(policy.tokenizer, said), encode_target(policy.tokenizer, words)
        logits = policy.model(input_ids=torch.tensor([[*prompt, *target]])).logits[0, len(prompt) - 1 : -1]
        found.append(logits.log_softmax(-1).gather(1, torch.tensor(target)[:, None])[:, 0])
        said.append(Message(role="assistant", content=words))
    return torch.cat(found)


def gradient(policy: Policy) -> torch.Tensor:
    found = torch.cat([p.grad.flatten() for p in policy.policy_parameters() if p.grad is not None])
    policy.zero_grad(set_to_none=True)
    return found


@pytest.mark.parametrize("size", [1, 2])
def test_supervised_training_learns_the_policys_turns(policy: Policy, size: int) -> None:
    """The mean over their tokens alone, each counted once; a plain answer is one turn."""
    answers = (TURNS, OTHER, 'It is "7", not {5}.')
    encoded = encode_pairs(policy, [Pair(text, ASK, text) for text in answers])
    assert {weight for item in encoded for weight in item.weights} == {0.0, 1.0}
    metrics = accumulate_gradient(policy, encoded, PassSize(size))
    ours = gradient(policy)
    logps = torch.cat([own_logps(policy, text) for text in answers])
    (-logps.mean()).backward()  # type: ignore[no-untyped-call]
    assert metrics["loss"] == pytest.approx(-float(logps.mean().detach()), abs=1e-5)
    torch.testing.assert_close(ours, gradient(policy), rtol=1e-4, atol=1e-6)


def logged(response: Transcript, *quotes: tuple[str, int], score: float = 1.0, **more: Any) -> LoggedAnswer:
    places = [(response.index(text), text, label) for text, label in quotes]
    spans = tuple(Span(start=at, end=at + len(text), label=label, text=text) for at, text, label in places)  # type: ignore[arg-type]
    return LoggedAnswer("1", ASK, response, Critique(text="", spans=spans, score=score), **more)


def test_offline_weights_stand_on_the_marked_words_of_the_right_turn(policy: Policy) -> None:
    (item,) = encode_logged(policy, [logged(TURNS, ("7", -1), ("up", 1), score=0.5)], CreditSettings())
    assert item.mask is not None and item.token_count == sum(item.mask) < len(item.target)
    texts = {1.5: "", -0.5: "", 0.5: "", 0.0: ""}
    for index, weight in zip(item.target, item.weights, strict=True):
        texts[weight] += policy.tokenizer.decode([index])
    assert texts[-0.5] == "7" and "up" in texts[1.5] and "well said" in texts[0.0] and "answer" in texts[0.5]
    assert all(weight == 0 for weight, own in zip(item.weights, item.mask, strict=True) if not own)


@pytest.mark.parametrize("size", [1, 2])
def test_the_offline_loss_is_over_own_tokens_alone(policy: Policy, size: int) -> None:
    answers = [logged(TURNS), logged(OTHER)]
    policy.freeze_reference()
    weighed = add_start_logps(policy, encode_logged(policy, answers, CreditSettings()), 2)
    metrics = offline.accumulate_gradient(policy, weighed, PassSize(size))
    ours = gradient(policy)
    logps = torch.cat([own_logps(policy, each) for each in (TURNS, OTHER)])
    (-logps.mean()).backward()  # type: ignore[no-untyped-call]
    assert metrics["loss"] == pytest.approx(-float(logps.mean().detach()), abs=1e-5)
    torch.testing.assert_close(ours, gradient(policy), rtol=1e-4, atol=1e-6)


def rewriting(policy: Policy) -> Policy:
    """Its template leaves the first word out of turns that are answered."""
    shown = "{{ message.content if loop.last else message.content.split(' ')[-1] }}"
    policy.tokenizer.chat_template = policy.tokenizer.chat_template.replace("{{ message.content }}", shown)
    return policy


def test_where_earlier_turns_are_rewritten_spans_on_them_are_left_out(policy: Policy) -> None:
    answer = logged(TURNS, ("up", 1), ("7", -1), score=-1.0)
    (item,) = encode_logged(rewriting(policy), [answer], CreditSettings())
    assert item.target == encode_target(policy.tokenizer, "answer 7")
    assert [policy.tokenizer.decode([i]) for i, w in zip(item.target, item.weights, strict=True) if w] == ["7"]


def test_verdicts_on_rewritten_turns_are_left_out(policy: Policy) -> None:
    answer = logged(TURNS, ("7", -1))
    judged = answer.critique.model_copy(update={"turn_scores": (0.5, -1.0), "score": None})
    as_it_is, rewritten = (
        encode_logged(make(policy), [replace(answer, critique=judged)], CreditSettings())[0]
        for make in (lambda same: same, rewriting)
    )
    weights = [[weight for weight in item.weights if weight] for item in (as_it_is, rewritten)]
    first = len(encode_target(policy.tokenizer, "look up lamps"))
    assert weights == [[0.5] * first + [-1.0], [-1.0]]  # a poor verdict has no weight, its word has


@pytest.mark.parametrize("scheme", ["spans", "last_token"])
def test_a_good_verdict_on_a_turn_weighs_its_own_tokens(policy: Policy, scheme: str) -> None:
    """Beside that on the whole, and under schemes that pay the score alone."""
    answer = logged(TURNS, score=0.25)
    judged = answer.critique.model_copy(update={"turn_scores": (None, 0.5)})
    (item,) = encode_logged(policy, [replace(answer, critique=judged)], CreditSettings(scheme=scheme))
    last = len(encode_target(policy.tokenizer, "answer 7"))
    own = [weight for weight, mine in zip(item.weights, item.mask or [], strict=True) if mine]
    assert own == [0.25] * (len(own) - last) + [0.75] * last and len(own) > last
