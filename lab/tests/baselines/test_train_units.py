"""A unit model: what a batch's gradient is, read one unit at a time, and a model on disk."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from text2grad.durable.run import OnStep, RunOptions
from text2grad.durable.state import seed_everything
from text2grad.errors import UserError
from text2grad.feedback import Example, Failure, Message, Place, Source, Span, Transcript
from text2grad.policy.encode import encode_prompt, encode_target
from text2grad.policy.load import load_frozen, load_policy
from text2grad.policy.model import Policy
from text2grad.policy.settings import LoraSettings, PolicySettings
from text2grad.train.passes import PassSize
from text2grad.train.settings import SupervisedSettings
from text2grad_lab.baselines.unit_model import (
    Divider,
    JudgedAnswer,
    UnitModel,
    accumulate_gradient,
    add_unit_head,
    encode_units,
    load_unit_head,
    train_unit_model,
    unit_head,
)
from text2grad_lab.baselines.units import UnitCritic, UnitKind
from tiny_runs import TEXTS, tiny_model

TRAINING = SupervisedSettings(epochs=25, batch_size=2, micro_batch_size=2, lr=5e-3)
ASKED = (Message(role="user", content="?"),)


def answer(number: int, response: str, poor: str, places: tuple[Place, ...]) -> JudgedAnswer:
    """An answer of which all before the words `poor` is good."""
    start = response.index(poor)
    spans = [Span(start=start, end=start + len(poor), label=-1, text=poor)]
    spans += [Span(start=0, end=start, label=1, text=response[:start])] if start else []
    return JudgedAnswer(str(number), (Message(role="user", content=TEXTS[number]),), response, tuple(spans), places)


BY_STEPS = [
    answer(0, "keep x. or y", "or y", ((0, 7), (8, 12))),
    answer(2, "return x + 2", "return x + 2", ((0, 12),)),
    answer(3, "even ok", "ok", ((0, 4), (5, 7))),
]
BY_TOKENS = [JudgedAnswer(each.id, each.prompt, each.response, each.spans[:1]) for each in BY_STEPS]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


def readable(model: Path) -> Policy:
    """A policy with a unit head that says something."""
    seed_everything(1)
    policy = load_policy(PolicySettings(model=str(model)))
    with torch.no_grad():
        add_unit_head(policy).map.weight.normal_()
    return policy.eval()


def on_disk(folder: Path) -> Policy:
    return load_unit_head(load_frozen(PolicySettings(model=str(folder))), folder)


def units_of(policy: Policy, each: JudgedAnswer) -> list[tuple[int, int]]:
    """The oracle, by counting characters: the last token and the label of each unit."""
    visible: list[tuple[int, set[int]]] = []  # the visible characters of each token that has some
    place = 0
    for index, token in enumerate(encode_target(policy.tokenizer, each.response)[:-1]):
        text = policy.tokenizer.decode([token])
        shown = {place + at for at, character in enumerate(text) if not character.isspace()}
        visible += [(index, set(range(min(shown), max(shown) + 1)))] if shown else []
        place += len(text)
    signed = [(set(range(span.start, span.end)), span.label) for span in each.spans]

    def label(own: set[int]) -> int:
        signs = {sign for characters, sign in signed if characters & own}
        return signs.pop() if len(signs) == 1 else 0

    if each.places is None:
        return [(index, label(own)) for index, own in visible]
    steps = [set(range(start, end)) for start, end in each.places]
    return [(max(index for index, own in visible if own & step), label(step)) for step in steps]


@pytest.mark.parametrize("answers", [BY_STEPS, BY_TOKENS], ids=["steps", "tokens"])
@pytest.mark.parametrize("size", [1, 8])
def test_the_gradient_is_that_of_the_mean_loss_of_all_units(
    model: Path, answers: list[JudgedAnswer], size: int
) -> None:
    policy = readable(model)
    losses = []
    for each in answers:
        prompt, ids = encode_prompt(policy.tokenizer, each.prompt), encode_target(policy.tokenizer, each.response)
        for last, label in units_of(policy, each):
            seen = torch.tensor([[*prompt, *ids[: last + 1]]])  # nothing that comes after the unit
            state = policy.model(seen, output_hidden_states=True).hidden_states[-1][0, -1]
            losses.append(-unit_head(policy)(state[None])[0].log_softmax(dim=0)[label + 1])
    loss = torch.stack(losses).mean()
    trained = [*policy.policy_parameters(), *unit_head(policy).parameters()]
    wanted = torch.autograd.grad(loss, trained)
    metrics = accumulate_gradient(policy, encode_units(policy, answers), PassSize(size))
    assert metrics["loss"] == pytest.approx(float(loss.detach()), abs=1e-5)
    for parameter, gradient in zip(trained, wanted, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("answers", "lora"), [(BY_STEPS, True), (BY_STEPS, False), (BY_TOKENS, False)])
def test_a_unit_model_learns_its_labels_and_is_the_same_on_disk(
    model: Path, tmp_path: Path, answers: list[JudgedAnswer], lora: bool
) -> None:
    policy = load_policy(PolicySettings(model=str(model), lora=LoraSettings(r=4) if lora else None))
    metrics = train_unit_model(policy, answers, TRAINING, RunOptions(tmp_path, "units"))
    assert metrics["loss"] < (0.9 if lora else 0.2)
    places = [each.places or () for each in answers] if answers[0].places else None
    asked = [each.prompt for each in answers], [each.response for each in answers], places
    loaded = UnitModel(on_disk(tmp_path / "policy"), 2).label(*asked)
    assert loaded == UnitModel(policy, 3).label(*asked)
    if not lora:
        labels = [[unit.label for unit in each] for each in loaded if not isinstance(each, Failure)]
        assert labels == [[label for _, label in units_of(policy, each)] for each in answers]


def test_what_cannot_be_labelled_is_a_failure(model: Path) -> None:
    policy = readable(model)
    labeller = UnitModel(policy, 2)
    long, fine = labeller.label([ASKED] * 2, ["rain " * 200, "ok"], None)
    assert isinstance(long, Failure) and long.kind == "unsupported"
    assert not isinstance(fine, Failure) and {place for *edges, _ in fine for place in edges} >= {0, 2}
    assert labeller.label([ASKED], [" "], [[]]) == [[]]
    turns = Transcript.of_messages([Message(role="assistant", content="a"), Message(role="assistant", content="b")])
    several, single = labeller.label([ASKED] * 2, [turns, "ok"], None)
    assert isinstance(several, Failure) and several.kind == "unsupported" and not isinstance(single, Failure)
    with torch.no_grad():
        add_unit_head(policy).map.weight.fill_(float("nan"))
    (broken,) = labeller.label([ASKED], ["ok"], None)
    assert isinstance(broken, Failure) and broken.kind == "invalid"


@pytest.mark.parametrize("units", ["steps", "tokens"])
def test_the_tokens_of_a_critic_are_those_that_its_model_was_given(model: Path, units: UnitKind) -> None:
    """Padding is none of them, nor is an answer that does not fit; what is read again counts again."""
    policy, given = readable(model), 0

    def reads(trunk: object, words: object, inputs: dict[str, torch.Tensor]) -> None:
        nonlocal given
        given += int(inputs["attention_mask"].sum())

    policy.model.model.register_forward_pre_hook(reads, with_kwargs=True)
    critic = UnitCritic(UnitModel(policy, 2), units, Source(kind="reward_model"))
    texts = ["keep x. or y", "return x + 2", "ok", "rain " * 200]
    asked = [Example(id=text, prompt=(Message(role="user", content=f"? {text[:9]}"),)) for text in texts]
    read = [
        len(encode_prompt(policy.tokenizer, each.prompt)) + len(encode_target(policy.tokenizer, text))
        for each, text in zip(asked, texts, strict=True)
    ]
    assert critic.tokens == given == 0
    critic.critique(asked, texts)
    assert critic.tokens == given == sum(read[:3])
    critic.critique(asked[2:], texts[2:])
    assert critic.tokens == given == sum(read[:3]) + read[2]


def test_a_step_is_right_or_wrong_and_nothing_in_between(model: Path) -> None:
    policy = readable(model)
    with torch.no_grad():
        add_unit_head(policy).map.bias[1] = 100.0
    (steps,) = UnitModel(policy, 2).label([ASKED], ["ok ok"], [[(0, 2), (3, 5)]])
    (tokens,) = UnitModel(policy, 2).label([ASKED], ["ok ok"], None)
    assert steps == [(0, 2, 1, 1.0), (3, 5, 1, 1.0)]
    assert not isinstance(tokens, Failure) and {unit.label for unit in tokens} == {0}


@pytest.mark.parametrize("text", ["é😀 ok", " lead", "a\n\nb ", "<|im_end|> <eos>", "x"])
def test_units_lie_in_the_answer_whatever_it_says(model: Path, text: str) -> None:
    found = Divider(readable(model).tokenizer)(text, None)
    assert found is not None
    inside = {place for unit in found.units for place in range(unit.start, unit.end)}
    assert {place for place in range(len(text)) if not text[place].isspace()} <= inside
    assert all(0 <= unit.start < unit.end <= len(text) and unit.last < len(found.ids) for unit in found.units)


@pytest.mark.parametrize(
    ("answers", "context", "said"),
    [
        ([], 512, "nothing to train on"),
        (BY_STEPS, 8, "prompts are too long"),
        ([JudgedAnswer("1", ASKED, " ", ())], 512, "no units"),
    ],
)
def test_what_cannot_be_trained_on_is_refused(
    model: Path, tmp_path: Path, answers: list[JudgedAnswer], context: int, said: str
) -> None:
    policy = load_policy(PolicySettings(model=str(model)))
    policy.model.config.max_position_embeddings = context
    with pytest.raises(UserError, match=said):
        train_unit_model(policy, answers, TRAINING, RunOptions(tmp_path / "run", "units"))
    assert not (tmp_path / "run").exists()


class Killed(Exception):
    """Stands for the end of the process."""


def test_a_stopped_training_resumes_as_if_never_stopped(model: Path, tmp_path: Path) -> None:
    def kill(step: int, metrics: dict[str, float]) -> None:
        if step == 3:
            raise Killed

    def train(folder: Path, on_step: OnStep | None = None, **changes: float) -> None:
        seed_everything(5)
        policy = load_policy(PolicySettings(model=str(model), lora=LoraSettings(r=4)))
        settings = TRAINING.model_copy(update={"epochs": 3, **changes})
        options = RunOptions(folder, "units", 5, on_step=on_step, checkpoint_every=1)
        train_unit_model(policy, BY_STEPS, settings, options)

    train(tmp_path / "straight")
    with pytest.raises(Killed):
        train(tmp_path / "stopped", kill)
    with pytest.raises(UserError, match=r"extra\.unit_model\.training\.lr"):
        train(tmp_path / "stopped", lr=0.5)
    train(tmp_path / "stopped")
    for name in ("adapter_model.safetensors", "unit_head.safetensors"):
        files = [tmp_path / run / "policy" / name for run in ("straight", "stopped")]
        assert files[0].read_bytes() == files[1].read_bytes(), name
