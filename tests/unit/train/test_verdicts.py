"""A reward model whose verdict is read by a head: what it is taught, what it says, where the head is."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from text2grad.chat.base import Chat, Completion, ScriptedChat
from text2grad.config import RewardModelSettings
from text2grad.critics.prompted import PromptedCritic
from text2grad.durable.run import RunOptions
from text2grad.errors import UserError
from text2grad.feedback import Critique, Example, Failure, Feedback, Message, Source
from text2grad.policy.adapters import BASE_DIGEST, beside, digest_of_base
from text2grad.policy.generate import generate
from text2grad.policy.grounded import vocabulary_for
from text2grad.policy.load import add_head, load_frozen, load_policy
from text2grad.policy.local_chat import LocalChat
from text2grad.policy.model import Policy
from text2grad.policy.settings import GenerationSettings, LoraSettings, PolicySettings
from text2grad.stages.critics import REWARD_MODEL_PROMPT
from text2grad.stages.reward_model.data import reward_pair
from text2grad.stages.reward_model.train import refuse_no_score
from text2grad.tasks.base import read_prompt
from text2grad.train.pairs import Encoded, Pair, encode_pairs
from text2grad.train.passes import PassSize
from text2grad.train.settings import SupervisedSettings
from text2grad.train.supervised import Heads, accumulate_gradient, train_supervised

SETTINGS = SupervisedSettings(micro_batch_size=2)
BY_HEAD = RewardModelSettings(score_head=True)
QUESTION = (Message(role="user", content="the cat sat on the mat?"),)
GREEDY = GenerationSettings(max_new_tokens=60, temperature=0.0, batch_size=2)
LORA = LoraSettings(r=4)


@pytest.fixture
def policy(tiny_llama: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> Policy:
    return Policy(copy.deepcopy(tiny_llama), tokenizer)


def record(response: str = "the cat sat", score: float | None = 1.0) -> Feedback:
    source = Source(kind="human")
    return Feedback(id="1", prompt=QUESTION, response=response, critique="So.", score=score, source=source)


def pairs(*records: Feedback) -> list[Pair]:
    return [pair for each in records if (pair := reward_pair(each, BY_HEAD))]


def by_hand(policy: Policy, items: list[Encoded], weight: torch.Tensor) -> torch.Tensor:
    """The oracle: one prompt at a time, without z behind it."""
    losses = []
    for item in items:
        if item.score is None:
            continue
        state = policy.model(torch.tensor([item.prompt]), output_hidden_states=True).hidden_states[-1][0, -1]
        chance = 1 / (1 + (-(weight[0] @ state)).exp())
        good = (1 + item.score) / 2
        losses.append(-(good * chance.log() + (1 - good) * (1 - chance).log()))
    return torch.stack(losses).mean()


@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_loss_is_the_mean_over_verdicts_beside_that_of_z(policy: Policy, size: int) -> None:
    records = record(), record("mat", -0.6), record("the dog sat on it", None), record("on the mat", 0.2)
    items = encode_pairs(policy, pairs(*records))
    z = accumulate_gradient(policy, items, PassSize(size))["loss"]
    alone = {name: each.grad for name, each in policy.named_parameters()}
    policy.zero_grad(set_to_none=True)
    head = add_head(policy, "score_head")
    torch.manual_seed(2)
    torch.nn.init.normal_(head.map.weight)
    oracle = by_hand(policy, items, head.map.weight)
    oracle.backward()  # type: ignore[no-untyped-call]
    wanted = {name: each.grad for name, each in policy.named_parameters()}
    policy.zero_grad(set_to_none=True)
    found = accumulate_gradient(policy, items, PassSize(size))
    assert found == {"loss": pytest.approx(z, rel=1e-5), "score_loss": pytest.approx(oracle.item(), rel=1e-5)}
    for name, parameter in policy.named_parameters():
        parts = [part for part in (wanted[name], alone.get(name)) if part is not None]
        if parameter.grad is not None:
            torch.testing.assert_close(parameter.grad, torch.stack(parts).sum(dim=0), rtol=1e-3, atol=1e-6)
        else:
            assert not parts


def test_answers_without_a_verdict_teach_none(policy: Policy) -> None:
    items = encode_pairs(policy, pairs(record(score=None), record("mat", None)))
    add_head(policy, "score_head")
    found = accumulate_gradient(policy, items, PassSize(2))
    assert found["score_loss"] == 0.0 and math.isfinite(found["loss"])


def test_the_score_is_taught_once(policy: Policy) -> None:
    by_head, written = reward_pair(record(), BY_HEAD), reward_pair(record(), RewardModelSettings())
    assert by_head and written
    assert by_head.score == 1.0 and "score" not in json.loads(by_head.target)
    assert written.score is None and json.loads(written.target)["score"] == 1.0
    with pytest.raises(UserError, match=r"no critique has a score.*score_head false"):
        refuse_no_score(pairs(record(score=None)))
    refuse_no_score(pairs(record(score=None), record()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_verdict_is_that_of_its_own_prompt(policy: Policy, dtype: torch.dtype) -> None:
    """In half precision, too, where a prompt is read once for all of its answers, and the longest comes first."""
    known = Policy(policy.model.to(dtype), policy.tokenizer)
    torch.manual_seed(2)
    torch.nn.init.normal_(add_head(known, "score_head").map.weight)
    assert known.score_head is not None and known.reader.half == (dtype == torch.bfloat16)
    prompts = [[5, 6], [7, 8, 9, 10, 11], [5, 6], [12]]
    found = generate(known, prompts, GenerationSettings(max_new_tokens=3, batch_size=3))
    with torch.no_grad():
        for prompt, sample in zip(prompts, found, strict=True):
            state = known.model(torch.tensor([prompt]), output_hidden_states=True).hidden_states[-1][0, -1].float()
            wanted = math.tanh(float(known.score_head.map.weight[0] @ state) / 2)
            assert sample.verdict == pytest.approx(wanted, abs=1e-5 if dtype == torch.float32 else 0.05)
    assert len({round(sample.verdict or 0.0, 1) for sample in found}) == 3
    known.score_head = None
    assert {sample.verdict for sample in generate(known, prompts, GREEDY)} == {None}


def critic(model: Policy) -> PromptedCritic:
    chat = LocalChat(model, GREEDY, "reward model", vocabulary_for(model, "on"))
    return PromptedCritic(chat, read_prompt(REWARD_MODEL_PROMPT), Source(kind="reward_model"))


def verdict_critic(chat: Chat) -> PromptedCritic:
    source = Source(kind="reward_model")
    return PromptedCritic(chat, read_prompt(REWARD_MODEL_PROMPT), source, verdict_only=True)


def verdicts(model: Policy, texts: list[str]) -> list[float | None]:
    asked = [Example(id=str(n), prompt=QUESTION) for n in range(len(texts))]
    said = critic(model).critique(asked, texts)
    return [each.score if isinstance(each, Critique) else math.nan for each in said]


def test_what_the_head_has_learned_is_the_verdict_of_its_critiques(model_folder: Path, tmp_path: Path) -> None:
    """Also on disk, and as an adapter beside a policy, which gets no head by it."""
    known = {"the cat sat": 0.8, "mat on the": -0.8, "the dog sat on it": 0.0}
    policy = load_policy(PolicySettings(model=str(model_folder), lora=LORA))
    taught = pairs(*(record(text, score) for text, score in known.items()))
    settings = SupervisedSettings(epochs=60, batch_size=3, micro_batch_size=2, lr=1e-2)
    losses: list[float] = []
    options = RunOptions(tmp_path, "reward model", 1, on_step=lambda _, m: losses.append(m["score_loss"]))
    train_supervised(policy, taught, settings, options, heads=Heads(verdicts=True))
    assert losses[0] == pytest.approx(math.log(2), rel=1e-5), "it starts at zero"
    said = verdicts(policy, list(known))
    assert said == pytest.approx(list(known.values()), abs=0.15)
    folder = tmp_path / "policy"
    alone = load_frozen(PolicySettings(model=str(folder)))
    assert verdicts(alone, list(known)) == pytest.approx(said, abs=1e-4)
    (folder / BASE_DIGEST).write_text(digest_of_base(policy.model))
    other = load_policy(PolicySettings(model=str(model_folder), lora=LORA))
    trained = {id(each) for each in other.trained().values()}
    view = beside(other, folder, "reward_model")
    assert verdicts(view, list(known)) == pytest.approx(said, abs=1e-4)
    with torch.no_grad():
        alone.score_head.map.weight.fill_(math.nan)  # type: ignore[union-attr]
    (failed,) = critic(alone).critique([Example(id="0", prompt=QUESTION)], ["the cat sat"])
    assert isinstance(failed, Failure) and failed.message == "the verdict is nan"
    assert other.score_head is None and {id(each) for each in other.trained().values()} == trained


def test_a_verdict_alone_is_the_one_that_comes_with_words(policy: Policy) -> None:
    torch.manual_seed(2)
    torch.nn.init.normal_(add_head(policy, "score_head").map.weight)
    texts = ["the cat sat", "mat", "the cat sat", "the dog sat on it"]
    asked = [Example(id=str(n), prompt=QUESTION) for n in range(len(texts))]
    chat = LocalChat(policy, GREEDY.model_copy(update={"max_new_tokens": 1}), "reward model")
    alone = verdict_critic(chat)
    said = alone.critique(asked, texts)
    with_words = verdicts(policy, texts)
    assert [each.score for each in said if isinstance(each, Critique)] == pytest.approx(with_words)
    assert len({round(each or 0.0, 3) for each in with_words}) == 3
    assert all(isinstance(each, Critique) and not (each.text or each.spans) for each in said)
    assert alone.overlap == "allowed" and alone.tokens > 4


def test_a_verdict_alone_that_is_no_number_is_a_failure(policy: Policy) -> None:
    answers: list[str | Completion | Failure] = [
        "{}",
        Completion(text="", score=math.nan),
        Failure(kind="unsupported", message="long"),
    ]
    alone = verdict_critic(ScriptedChat(answers))
    said = alone.critique([Example(id="1", prompt=QUESTION)] * 3, ["a", "b", "c"])
    assert [each.kind for each in said if isinstance(each, Failure)] == ["invalid", "invalid", "unsupported"]
