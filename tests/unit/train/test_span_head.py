"""A tagger: what it is taught, what it marks, what its marks weigh, the verdict they come to."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from text2grad.config import RewardModelSettings
from text2grad.critics.prompted import TaggerCritic
from text2grad.durable.run import RunOptions
from text2grad.feedback import (
    Critic,
    Critique,
    Example,
    Failure,
    Feedback,
    Judgement,
    LabelledPlace,
    Message,
    Source,
    Transcript,
    spans_at,
)
from text2grad.policy.adapters import BASE_DIGEST, beside, digest_of_base
from text2grad.policy.heads.head import DEPTH, LABEL, Head, label_loss, unweighted
from text2grad.policy.heads.tagger import Reading, Tagger, balance
from text2grad.policy.load import add_head, load_frozen, load_policy
from text2grad.policy.model import Policy
from text2grad.policy.settings import LoraSettings, PolicySettings
from text2grad.stages.critics import REWARD_MODEL_PROMPT
from text2grad.stages.reward_model.data import as_taught, reward_pair
from text2grad.tasks.base import read_prompt
from text2grad.train.pairs import Pair, encode_pairs
from text2grad.train.settings import NextTokenSettings
from text2grad.train.supervised import Heads, train_supervised

TAGGER = RewardModelSettings(kind="tagger")
QUESTION = (Message(role="user", content="the cat sat on the mat?"),)
TAUGHT = {"the cat sat on the mat": "mat", "the dog sat on it": "dog sat", "mat on mat": ""}
"""Responses, and what is poor in them; the word after the first "the" is good elsewhere."""
PROMPT = read_prompt(REWARD_MODEL_PROMPT)
SOURCE = Source(kind="reward_model")


@pytest.fixture
def policy(tiny_llama: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> Policy:
    return Policy(copy.deepcopy(tiny_llama), tokenizer)


def record(response: str, poor: str) -> Feedback:
    start = response.find(poor)
    places = [LabelledPlace(start, start + len(poor), -1)] if poor else [LabelledPlace(0, 3, 1)]
    spans, score = spans_at(places, response), -0.5 if poor else 0.5
    return Feedback(
        id="1", prompt=QUESTION, response=response, critique="So.", spans=spans, score=score, source=SOURCE
    )


def pairs() -> list[Pair]:
    return [pair for each in TAUGHT.items() if (pair := reward_pair(record(*each), TAGGER))]


def marks(judgements: list[Judgement]) -> list[list[tuple[str, int]]]:
    read = [each for each in judgements if isinstance(each, Critique)]
    assert len(read) == len(judgements), judgements
    return [[(span.text, span.label) for span in each.spans] for each in read]


def heads_of(policy: Policy) -> TaggerCritic:
    return TaggerCritic(Tagger(policy, 2), PROMPT, SOURCE)


def judged(critic: Critic, texts: list[str]) -> list[Judgement]:
    return critic.critique([Example(id=str(n), prompt=QUESTION) for n in range(len(texts))], texts)


def with_heads(policy: Policy) -> Policy:
    torch.manual_seed(2)
    torch.nn.init.normal_(add_head(policy, "span_head").map.weight)
    return policy


def test_what_a_head_marks_is_not_written() -> None:
    said = record("the cat sat on the mat", "mat").judgement()
    assert isinstance(said, Critique) and said.spans
    taught = as_taught(said, TAGGER)
    assert taught == Critique(text="")
    assert as_taught(said, RewardModelSettings()).spans == said.spans


def test_what_the_head_has_learned_are_the_marks_of_its_critiques(model_folder: Path, tmp_path: Path) -> None:
    """Also on disk, and as an adapter beside a policy, which gets no head by it."""
    torch.manual_seed(0)
    policy = load_policy(PolicySettings(model=str(model_folder), lora=LoraSettings(r=4)))
    settings = NextTokenSettings(epochs=60, batch_size=3, micro_batch_size=3, lr=1e-2)
    options = RunOptions(tmp_path, "reward model", 1)
    weight = TAGGER.weight_of_labels
    train_supervised(policy, pairs(), settings, options, heads=Heads(weight, spans=True))
    texts, wanted = list(TAUGHT), [[("mat", -1)], [("dog sat", -1)], [("mat", 1)]]
    assert marks(judged(heads_of(policy), texts)) == wanted
    folder = tmp_path / "policy"
    alone = load_frozen(PolicySettings(model=str(folder)))
    assert marks(judged(heads_of(alone), texts)) == wanted
    (folder / BASE_DIGEST).write_text(digest_of_base(policy.model))
    other = load_policy(PolicySettings(model=str(model_folder), lora=LoraSettings(r=4)))
    view = beside(other, folder, "reward_model")
    assert marks(judged(heads_of(view), texts)) == wanted and heads_of(view).overlap == "never"
    assert other.span_head is None
    with torch.no_grad():
        alone.span_head.map.weight.fill_(math.nan)  # type: ignore[union-attr]
    (failed,) = judged(heads_of(alone), texts[:1])
    assert isinstance(failed, Failure) and "not finite" in failed.message


def test_a_token_is_read_where_its_label_was_learned(policy: Policy) -> None:
    """The oracle: one prompt alone, and the labels of training to say which of its tokens are the response's."""
    with_heads(policy)
    asked = [pair.prompt for pair in pairs()]
    read = Tagger(policy, 2).read(asked, list(TAUGHT))
    for item, each in zip(encode_pairs(policy, pairs()), read, strict=True):
        assert isinstance(each, Reading) and policy.span_head
        with torch.no_grad():
            layers = policy.model(torch.tensor([item.prompt]), output_hidden_states=True).hidden_states
            inside = [place for place, label in enumerate(item.labels) if label != -100]
            expected = policy.span_head(layers[int(DEPTH * (len(layers) - 1))][0, inside])
        solid = [n for n, token in enumerate(inside) if policy.tokenizer.decode([item.prompt[token]]).strip()]
        assert torch.allclose(each.logits, unweighted(expected[solid]), atol=1e-4)


def test_labels_are_as_likely_as_they_were() -> None:
    """The oracle: where states say nothing, what is read are the shares of the labels in training."""
    head = Head(4, LABEL)
    shares = torch.tensor([3, 5, 2])
    labels = torch.repeat_interleave(torch.tensor([-1, 0, 1]), shares)[None]
    layers = [torch.ones(1, 10, 4)] * 5
    optimizer = torch.optim.SGD(head.parameters(), lr=0.05)
    for _ in range(300):
        optimizer.zero_grad()
        label_loss(head, layers, labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    chances = unweighted(head(torch.ones(1, 4))).softmax(dim=-1)
    assert torch.allclose(chances, shares / 10, atol=1e-3)


def test_a_mark_weighs_what_it_may_be_expected_to_pay(policy: Policy) -> None:
    """Two poor neighbours share the mean; a token that is likelier neither is no mark; turns part marks."""
    places, turns = ((0, 3), (4, 7), (8, 11), (12, 15), (16, 19)), (0, 0, 0, 0, 1)
    chances = [[0.6, 0.2, 0.2], [0.8, 0.2, 0.0], [0.2, 0.6, 0.2], [0.4, 0.1, 0.5], [0.0, 0.0, 1.0]]
    found = Tagger(with_heads(policy), 2).marks(Reading(places, turns, torch.tensor(chances).log()))
    assert found == ((0, 7, -1, 0.6), (12, 15, 1, 0.1), (16, 19, 1, 1.0))
    even = torch.tensor([[0.4, 0.2, 0.4]]).log()
    assert spans_at(Tagger(policy, 2).marks(Reading(((0, 3),), (0,), even)), "the")


def test_the_verdict_is_what_the_marks_come_to(policy: Policy) -> None:
    """No words are written; blank tokens are in no mark."""
    verdicts = []
    for said in judged(heads_of(with_heads(policy)), list(TAUGHT)):
        assert isinstance(said, Critique) and said.spans and said.text == ""
        good, poor = (sum(each.end - each.start for each in said.spans if each.label == sign) for sign in (1, -1))
        assert said.score == (good - poor) / (good + poor)
        verdicts.append(said.score)
    assert len(set(verdicts)) > 1 and (balance([]), balance([LabelledPlace(0, 3, 1)])) == (0, 1)


def test_a_tagger_has_no_other_verdict() -> None:
    with pytest.raises(ValidationError, match="score_head"):
        RewardModelSettings(kind="tagger", score_head=True)


def test_a_response_that_is_not_in_the_prompt_to_the_letter_is_a_failure(policy: Policy) -> None:
    (failed, read) = judged(heads_of(with_heads(policy)), ["the </response> mat", "the mat"])
    assert isinstance(failed, Failure) and "to the letter" in failed.message and isinstance(read, Critique)


def test_the_turns_of_a_conversation_are_marked_each_for_itself(policy: Policy) -> None:
    """Not what a tool said between them, and no span is of two turns; the second turn repeats the first."""
    said = [("assistant", "the cat"), ("tool", "the dog"), ("assistant", "the cat"), ("assistant", "sat")]
    response = Transcript.of_messages([Message(role=role, content=words) for role, words in said])  # type: ignore[arg-type]
    with torch.no_grad():
        with_heads(policy).span_head.map.bias.copy_(torch.tensor([1e4, 0.0, 0.0]))  # type: ignore[union-attr]
    (judgement,) = judged(heads_of(policy), [response])
    assert marks([judgement]) == [[("the cat", -1), ("the cat", -1), ("sat", -1)]]
    assert isinstance(judgement, Critique)
    assert [span.start for span in judgement.spans] == [turn.start for turn in response.turns]
