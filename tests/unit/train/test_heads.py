"""Heads of a reward model: token labels, the verdict and the tagger; what they are taught, and what
they say."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from text2grad.chat.base import Completion, ScriptedChat
from text2grad.config import RewardModelSettings
from text2grad.critics.prompted import PromptedCritic, TaggerCritic
from text2grad.durable.run import RunOptions
from text2grad.errors import InvalidFields, UserError
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
    count_critic_tokens,
    spans_at,
)
from text2grad.policy.adapters import BASE_DIGEST, hash_base_weights, load_second_adapter
from text2grad.policy.generate import generate
from text2grad.policy.grounded import make_vocabulary
from text2grad.policy.heads.head import DEPTH, LABEL, UNLABELLED, Head, label_loss, unweighted
from text2grad.policy.heads.tagger import Reading, Tagger, balance
from text2grad.policy.load import add_head, load_frozen, load_policy
from text2grad.policy.local_chat import LocalChat
from text2grad.policy.model import Policy
from text2grad.policy.settings import GenerationSettings, LoraSettings, PolicySettings
from text2grad.stages.critics import REWARD_MODEL_PROMPT
from text2grad.stages.reward_model.data import as_taught, fitting, reward_pair
from text2grad.tasks.base import read_prompt
from text2grad.train.pairs import EncodedPair, Pair, encode_pairs
from text2grad.train.passes import PassSize
from text2grad.train.settings import SupervisedSettings
from text2grad.train.supervised import Heads, accumulate_gradient, train_supervised

LABELLED = RewardModelSettings(label_weight=1.0)
SCORED = RewardModelSettings(score_head=True)
TAGGER = RewardModelSettings(kind="tagger")
QUESTION = "the cat sat on the mat?"
SAID = "the cat sat on the mat"
TAUGHT = {SAID: "mat", "the dog sat on it": "dog sat", "mat on mat": ""}
"""Responses, and what is poor in them; of the last the first word is good."""
GREEDY = GenerationSettings(max_new_tokens=60, temperature=0.0, batch_size=2)
PROMPT = read_prompt(REWARD_MODEL_PROMPT)
SOURCE = Source(kind="reward_model")


@pytest.fixture
def policy(tiny_llama: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> Policy:
    return Policy(copy.deepcopy(tiny_llama), tokenizer)


def record(
    response: str = SAID,
    marks: Mapping[str, int] | None = None,
    score: float | None = 1.0,
    question: str = QUESTION,
) -> Feedback:
    """A record whose critique marks the words of `marks`, by default what is good and poor in
    `SAID`."""
    quotes = {"cat sat": 1, "mat": -1} if marks is None else marks
    starts = {words: response.find(words) for words in quotes}
    places = [
        LabelledPlace(start, start + len(words), quotes[words])
        for words, start in starts.items()
        if words and start >= 0
    ]
    prompt = (Message(role="user", content=question),)
    spans = spans_at(places, response)
    return Feedback(
        id="1", prompt=prompt, response=response, critique="So.", spans=spans, score=score, source=SOURCE
    )


def pairs(settings: RewardModelSettings, *records: Feedback) -> list[Pair]:
    return [pair for each in records if (pair := reward_pair(each, settings))]


def to_tag() -> list[Pair]:
    records = (
        record(text, {poor: -1} if poor else {"mat": 1}, -0.5 if poor else 0.5) for text, poor in TAUGHT.items()
    )
    return pairs(TAGGER, *records)


def examples(count: int) -> list[Example]:
    return [Example(id=str(n), prompt=(Message(role="user", content=QUESTION),)) for n in range(count)]


def judged(critic: Critic, texts: list[str]) -> list[Judgement]:
    return critic.critique(examples(len(texts)), texts)


def tagging(policy: Policy) -> TaggerCritic:
    return TaggerCritic(Tagger(policy, 2), PROMPT, SOURCE)


def writing(policy: Policy) -> PromptedCritic:
    return PromptedCritic(LocalChat(policy, GREEDY, "reward model", make_vocabulary(policy, "on")), PROMPT, SOURCE)


def scores(judgements: list[Judgement]) -> list[float | None]:
    return [said.score if isinstance(said, Critique) else math.nan for said in judgements]


def marks(judgements: list[Judgement]) -> list[list[tuple[str, int]]]:
    assert all(isinstance(said, Critique) for said in judgements), judgements
    return [[(span.text, span.label) for span in said.spans] for said in judgements if isinstance(said, Critique)]


def learned_head(policy: Policy, name: Any) -> torch.nn.Linear:
    """Add a head that looks as if it had learned something; return its linear map."""
    linear = add_head(policy, name).map
    torch.manual_seed(2)
    torch.nn.init.normal_(linear.weight)
    return linear


# Which token of the prompt has which label.


def words(policy: Policy, item: EncodedPair, label: int) -> str:
    tokens = [token for token, other in zip(item.prompt, item.labels, strict=True) if other == label]
    return str(policy.tokenizer.decode(tokens))


@pytest.mark.parametrize("kind", ["tokenizer", "sentencepiece_tokenizer", "control token"])
def test_labels_fall_on_the_tokens_of_the_response_and_not_of_the_question(
    kind: str, policy: Policy, request: pytest.FixtureRequest
) -> None:
    """Also where the response spells a control token of this tokenizer, which a prompt shows as it
    is."""
    control = "<file_sep> " if kind == "control token" else ""
    own = copy.deepcopy(policy.tokenizer if control else request.getfixturevalue(kind))
    own.chat_template = policy.tokenizer.chat_template
    own.eos_token = own.eos_token or own.convert_ids_to_tokens(0)
    if control:
        own.add_special_tokens({"additional_special_tokens": [control.strip()]})
    made = Policy(policy.model, own)
    (item,) = encode_pairs(made, pairs(LABELLED, record(f"the cat sat {control}on the mat")))
    assert [words(made, item, label).split() for label in (1, -1)] == [["cat", "sat"], ["mat"]]
    assert words(made, item, 0).split() == ["the", *control.split(), "on", "the"]
    assert "question" in words(made, item, UNLABELLED) and "mat?" in words(made, item, UNLABELLED)
    assert not control or own.convert_tokens_to_ids(control.strip()) not in item.prompt


def test_what_has_no_labels(
    policy: Policy, speaking_word_piece: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a weight none is asked for; what would close the prompt's tag does not stand there to
    the letter."""
    (unweighted_pair,) = pairs(RewardModelSettings(), record())
    assert unweighted_pair.marked == () and encode_pairs(policy, [unweighted_pair])[0].labels == []
    assert encode_pairs(policy, pairs(LABELLED, record("the cat sat </response> on the mat")))[0].labels == []
    with pytest.raises(UserError, match=r"changes the text.*label_weight 0"):
        encode_pairs(Policy(policy.model, speaking_word_piece), pairs(LABELLED, record("The Cat sat on the mat")))
    monkeypatch.setattr(policy.model.config, "max_position_embeddings", 240)
    ((_, cut),) = fitting(policy, [record(question="the cat sat on the mat? " * 20)], LABELLED)
    (item,) = encode_pairs(policy, [cut])
    assert [words(policy, item, label).strip() for label in (1, -1)] == ["cat sat", "mat"], "a cut prompt has them"


# Losses beside that of z, against an oracle that reads one pair at a time, token by token, without
# padding.


def hidden_states(policy: Policy, ids: list[int]) -> Any:
    return policy.model(torch.tensor([ids]), output_hidden_states=True).hidden_states


def label_loss_by_hand(policy: Policy, items: list[EncodedPair]) -> Tensor:
    linear = learned_head(policy, "label_head")
    torch.nn.init.normal_(linear.bias)
    losses = []
    for item in items:
        layers = hidden_states(policy, [*item.prompt, *item.target])
        assert len(layers) == 3  # of two layers, the first is read
        for place, label in enumerate(item.labels):
            if label != UNLABELLED:
                state = layers[1][0, place]
                logits = linear.weight @ (state / (state.square().mean() + 1e-6).sqrt()) + linear.bias
                chance = logits[label + 1].exp() / logits.exp().sum()
                losses.append(-(3.0 if label < 0 else 1.0) * chance.log())
    return torch.stack(losses).mean()


def score_loss_by_hand(policy: Policy, items: list[EncodedPair]) -> Tensor:
    linear, losses = learned_head(policy, "score_head"), []
    for item in items:
        if item.score is not None:
            chance = 1 / (1 + (-(linear.weight[0] @ hidden_states(policy, item.prompt)[-1][0, -1])).exp())
            good = (1 + item.score) / 2
            losses.append(-(good * chance.log() + (1 - good) * (1 - chance).log()))
    return torch.stack(losses).mean()


def gradients(policy: Policy) -> dict[str, Tensor | None]:
    by_name = {name: parameter.grad for name, parameter in policy.named_parameters()}
    policy.zero_grad(set_to_none=True)
    return by_name


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize(
    ("settings", "by_hand", "name", "weight"),
    [(LABELLED, label_loss_by_hand, "label_loss", 0.5), (SCORED, score_loss_by_hand, "score_loss", 1.0)],
)
def test_the_loss_of_a_head_is_its_mean_beside_that_of_z(
    policy: Policy,
    settings: RewardModelSettings,
    by_hand: Callable[[Policy, list[EncodedPair]], Tensor],
    name: str,
    weight: float,
    size: int,
) -> None:
    records = (
        record(), record("mat", score=-0.6, question="why?"), record("the dog </response>", score=None),
        record("on the mat", score=0.2),
    )  # fmt: skip
    items = encode_pairs(policy, pairs(settings, *records))
    z = accumulate_gradient(policy, items, PassSize(size))["loss"]
    alone = gradients(policy)
    oracle = by_hand(policy, items)
    oracle.backward()  # type: ignore[no-untyped-call]
    head_alone = gradients(policy)
    label_weight = weight if name == "label_loss" else 0.0
    terms = accumulate_gradient(policy, items, PassSize(size), label_weight)
    assert terms == {"loss": pytest.approx(z, rel=1e-5), name: pytest.approx(oracle.item(), rel=1e-5)}
    for parameter, gradient in gradients(policy).items():
        more = head_alone[parameter]
        parts = [
            part for part in (alone.get(parameter), None if more is None else weight * more) if part is not None
        ]
        assert (gradient is None) == (not parts)
        if gradient is not None:
            torch.testing.assert_close(gradient, torch.stack(parts).sum(dim=0), rtol=1e-3, atol=1e-6)


def test_a_batch_without_labels_or_verdicts_teaches_a_head_nothing(policy: Policy) -> None:
    items = encode_pairs(policy, pairs(LABELLED, record("the dog </response>", score=None)))
    add_head(policy, "label_head")
    add_head(policy, "score_head")
    terms = accumulate_gradient(policy, items, PassSize(1), label_weight=1.0)
    assert terms["label_loss"] == terms["score_loss"] == 0.0 and math.isfinite(terms["loss"])


def test_labels_are_as_likely_as_they_were() -> None:
    """The oracle: where states say nothing, what is read are the shares of the labels in
    training."""
    head, shares = Head(4, LABEL), torch.tensor([3, 5, 2])
    labels = torch.repeat_interleave(torch.tensor([-1, 0, 1]), shares)[None]
    optimizer = torch.optim.SGD(head.parameters(), lr=0.05)
    for _ in range(300):
        optimizer.zero_grad()
        label_loss(head, [torch.ones(1, 10, 4)] * 5, labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    chances = unweighted(head(torch.ones(1, 4))).softmax(dim=-1)
    assert torch.allclose(chances, shares / 10, atol=1e-3)


def test_training_teaches_the_labels_and_leaves_no_trace_in_the_folder(policy: Policy, tmp_path: Path) -> None:
    settings = SupervisedSettings(epochs=30, batch_size=2, micro_batch_size=2, lr=3e-3)
    taught, losses = pairs(LABELLED, record(), record("mat", question="why?")), []
    options = RunOptions(tmp_path, "reward model", 1, on_step=lambda _, terms: losses.append(terms["label_loss"]))
    train_supervised(policy, taught, settings, options, heads=Heads(label_weight=1.0))
    labels = [label for pair in encode_pairs(policy, taught) for label in pair.labels if label != UNLABELLED]
    weight = sum(3 if label < 0 else 1 for label in labels) / len(labels)
    assert losses[0] == pytest.approx(weight * math.log(3), rel=1e-5) and losses[-1] < 0.5
    weights = [load_file(path) for path in (tmp_path / "policy").glob("*.safetensors")]
    assert weights and not [name for file in weights for name in file if "label" in name]


VERDICTS = {"the cat sat": 0.8, "mat on the": -0.8, "the dog sat on it": 0.0}


@pytest.mark.parametrize("tags", [False, True])
def test_what_a_head_has_learned_is_what_its_critic_says(model_folder: Path, tmp_path: Path, tags: bool) -> None:
    """Also on disk, and as an adapter beside a policy, which gets no head by it."""
    torch.manual_seed(0)
    lora = LoraSettings(r=4)
    policy = load_policy(PolicySettings(model=str(model_folder), lora=lora))
    taught = to_tag() if tags else pairs(SCORED, *(record(text, {}, score) for text, score in VERDICTS.items()))
    texts, critic = (list(TAUGHT), tagging) if tags else (list(VERDICTS), writing)
    heads = Heads(TAGGER.weight_of_labels, spans=True) if tags else Heads(verdicts=True)
    settings = SupervisedSettings(epochs=60, batch_size=3, micro_batch_size=2, lr=1e-2)
    train_supervised(policy, taught, settings, RunOptions(tmp_path, "reward model", 1), heads=heads)

    def says_so(model: Policy) -> bool:
        judgements = judged(critic(model), texts)
        if tags:
            return marks(judgements) == [[("mat", -1)], [("dog sat", -1)], [("mat", 1)]]
        return scores(judgements) == pytest.approx(list(VERDICTS.values()), abs=0.15)

    folder = tmp_path / "policy"
    alone = load_frozen(PolicySettings(model=str(folder)))
    (folder / BASE_DIGEST).write_text(hash_base_weights(policy.model))
    other = load_policy(PolicySettings(model=str(model_folder), lora=lora))
    trained = {id(weight) for weight in other.trainable_parameters().values()}
    view = load_second_adapter(other, folder, "reward_model")
    assert [says_so(model) for model in (policy, alone, view)] == [True] * 3
    assert other.score_head is None and other.span_head is None
    assert {id(weight) for weight in other.trainable_parameters().values()} == trained
    assert not tags or tagging(view).overlap == "never"
    with torch.no_grad():
        (alone.span_head or alone.score_head).map.weight.fill_(math.nan)  # type: ignore[union-attr]
    (failed,) = judged(critic(alone), texts[:1])
    assert isinstance(failed, Failure) and ("not finite" if tags else "nan") in failed.message


# Verdicts.


def test_the_score_is_taught_once(policy: Policy) -> None:
    (by_head,), (written,) = pairs(SCORED, record()), pairs(RewardModelSettings(), record())
    assert by_head.score == 1.0 and "score" not in json.loads(by_head.target)
    assert written.score is None and json.loads(written.target)["score"] == 1.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_verdict_is_that_of_its_own_prompt(policy: Policy, dtype: torch.dtype) -> None:
    """A prompt is read once for all of its answers, and the longest comes first."""
    model = Policy(policy.model.to(dtype), policy.tokenizer)
    linear = learned_head(model, "score_head")
    prompts = [[5, 6], [7, 8, 9, 10, 11], [5, 6], [12]]
    samples = generate(model, prompts, GenerationSettings(max_new_tokens=3, batch_size=3))
    with torch.no_grad():
        for prompt, sample in zip(prompts, samples, strict=True):
            state = hidden_states(model, prompt)[-1][0, -1].float()
            expected = math.tanh(float(linear.weight[0] @ state) / 2)
            assert sample.verdict == pytest.approx(expected, abs=1e-5 if dtype == torch.float32 else 0.05)
    assert len({round(sample.verdict or 0.0, 1) for sample in samples}) == 3
    model.score_head = None
    assert {sample.verdict for sample in generate(model, prompts, GREEDY)} == {None}


def test_a_verdict_alone_is_the_one_that_comes_with_words(policy: Policy) -> None:
    learned_head(policy, "score_head")
    texts = ["the cat sat", "mat", "the cat sat", "the dog sat on it"]
    chat = LocalChat(policy, GREEDY.model_copy(update={"max_new_tokens": 1}), "reward model")
    alone = PromptedCritic(chat, PROMPT, SOURCE, verdict_only=True)
    said, with_words = judged(alone, texts), scores(judged(writing(policy), texts))
    assert scores(said) == pytest.approx(with_words)
    assert len({round(score or 0.0, 3) for score in with_words}) == 3
    assert all(isinstance(one, Critique) and not (one.text or one.spans) for one in said)
    assert alone.overlap == "allowed" and alone.tokens > 4


def test_a_verdict_alone_that_is_no_number_is_a_failure() -> None:
    answers: list[str | Completion | Failure] = [
        "{}",
        Completion(text="", score=math.nan),
        Failure(kind="unsupported", message="long"),
    ]
    alone = PromptedCritic(ScriptedChat(answers), PROMPT, SOURCE, verdict_only=True)
    failures = [one.kind for one in judged(alone, ["a", "b", "c"]) if isinstance(one, Failure)]
    assert failures == ["invalid", "invalid", "unsupported"]


# The tagger.


def test_what_a_head_marks_is_not_written() -> None:
    said = record().judgement()
    assert isinstance(said, Critique) and said.spans
    assert as_taught(said, TAGGER) == Critique(text="")
    assert as_taught(said, RewardModelSettings()).spans == said.spans
    with pytest.raises(InvalidFields, match="score_head"):
        RewardModelSettings(kind="tagger", score_head=True)


def test_a_token_is_read_where_its_label_was_learned(policy: Policy) -> None:
    """The oracle: one prompt alone, and the labels of training to say which of its tokens are the
    response's."""
    learned_head(policy, "span_head")
    readings = Tagger(policy, 2).read([pair.prompt for pair in to_tag()], list(TAUGHT))
    for item, reading in zip(encode_pairs(policy, to_tag()), readings, strict=True):
        assert isinstance(reading, Reading) and policy.span_head
        inside = [place for place, label in enumerate(item.labels) if label != UNLABELLED]
        with torch.no_grad():
            layers = hidden_states(policy, item.prompt)
            expected = policy.span_head(layers[int(DEPTH * (len(layers) - 1))][0, inside])
        solid = [n for n, token in enumerate(inside) if policy.tokenizer.decode([item.prompt[token]]).strip()]
        assert torch.allclose(reading.logits, unweighted(expected[solid]), atol=1e-4)


def test_a_mark_weighs_what_it_may_be_expected_to_pay(policy: Policy) -> None:
    """Two poor neighbours share the mean; a token that is likelier neither is no mark; turns part
    marks."""
    learned_head(policy, "span_head")
    places, turns = ((0, 3), (4, 7), (8, 11), (12, 15), (16, 19)), (0, 0, 0, 0, 1)
    chances = [[0.6, 0.2, 0.2], [0.8, 0.2, 0.0], [0.2, 0.6, 0.2], [0.4, 0.1, 0.5], [0.0, 0.0, 1.0]]
    marked = Tagger(policy, 2).marks(Reading(places, turns, torch.tensor(chances).log(), 9))
    assert marked == ((0, 7, -1, 0.6), (12, 15, 1, 0.1), (16, 19, 1, 1.0))
    even = torch.tensor([[0.4, 0.2, 0.4]]).log()
    assert spans_at(Tagger(policy, 2).marks(Reading(((0, 3),), (0,), even, 9)), "the")


def test_the_verdict_is_what_the_marks_come_to(policy: Policy) -> None:
    """No words are written; blank tokens are in no mark; what is not there to the letter is a
    failure."""
    learned_head(policy, "span_head")
    verdicts = []
    critic = tagging(policy)
    for said in judged(critic, list(TAUGHT)):
        assert isinstance(said, Critique) and said.spans and said.text == ""
        good, poor = (sum(span.end - span.start for span in said.spans if span.label == sign) for sign in (1, -1))
        assert said.score == (good - poor) / (good + poor)
        verdicts.append(said.score)
    assert len(set(verdicts)) > 1 and (balance([]), balance([LabelledPlace(0, 3, 1)])) == (0, 1)
    assert count_critic_tokens(critic) == sum(len(item.prompt) for item in encode_pairs(policy, to_tag()))
    failed, read = judged(tagging(policy), ["the </response> mat", "the mat"])
    assert isinstance(failed, Failure) and "verbatim" in failed.message and isinstance(read, Critique)


def test_the_turns_of_a_conversation_are_marked_each_for_itself(policy: Policy) -> None:
    """Not what a tool said between them, and no span is of two turns; the second turn repeats the
    first."""
    said = [("assistant", "the cat"), ("tool", "the dog"), ("assistant", "the cat"), ("assistant", "sat")]
    response = Transcript.of_messages([Message(role=role, content=words) for role, words in said])
    with torch.no_grad():
        learned_head(policy, "span_head").bias.copy_(torch.tensor([1e4, 0.0, 0.0]))
    (judgement,) = judged(tagging(policy), [response])
    assert marks([judgement]) == [[("the cat", -1), ("the cat", -1), ("sat", -1)]]
    assert isinstance(judgement, Critique)
    assert [span.start for span in judgement.spans] == [turn.start for turn in response.turns]
