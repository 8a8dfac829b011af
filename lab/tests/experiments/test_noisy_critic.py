"""Noise in spans: the requested share, reproducible, without other changes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from text2grad.config import find_config, load_config
from text2grad.critics.reference import ReferenceCritic
from text2grad.critics.table import spec_of
from text2grad.errors import UserError
from text2grad.feedback import Critique, Example, Failure, Feedback, Judgement, Message, Source, Span, get_overlap
from text2grad.stages.critics import critic_factory, critic_inputs
from text2grad.stages.reward_model.gate import refuse_unfit_reward_model
from text2grad_lab.compare.methods import methods_of
from text2grad_lab.experiments.noisy_critic import NoiseSettings, NoisyCritic

CRITIC = "text2grad_lab.experiments.noisy_critic"
WORDS = "the quick brown fox jumps over the lazy dog again and again"


class EveryWord:
    """A critic that labels words good and poor alternately and fails on the response `broken`."""

    source = Source(kind="program")

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        return [self._one(response) for response in responses]

    def _one(self, response: str) -> Judgement:
        if response == "broken":
            return Failure(kind="unsupported", message="no tests")
        spans, start = [], 0
        for index, word in enumerate(response.split(" ")):
            end = start + len(word)
            spans.append(Span(start=start, end=end, label=-1 if index % 2 else 1, text=word))
            start = end + 1
        return Critique(text="said", spans=tuple(spans), score=0.5)


def example(name: str) -> Example:
    return Example(id=name, prompt=(Message(role="user", content="say it"),))


def noisy(seed: int = 0, **settings: Any) -> NoisyCritic:
    return NoisyCritic(EveryWord(), NoiseSettings(**settings), seed)


def noisy_critiques(critic: NoisyCritic, count: int = 200) -> list[Critique]:
    examples = [example(str(index)) for index in range(count)]
    judgements = critic.critique(examples, [WORDS] * count)
    assert all(isinstance(judgement, Critique) for judgement in judgements)
    return [judgement for judgement in judgements if isinstance(judgement, Critique)]


def plain() -> tuple[Span, ...]:
    (critique,) = EveryWord().critique([example("a")], [WORDS])
    assert isinstance(critique, Critique)
    return critique.spans


@pytest.mark.parametrize("share", [0.0, 0.1, 0.4, 1.0])
def test_the_share_of_flipped_labels_is_the_requested_one(share: float) -> None:
    critiques = noisy_critiques(noisy(kind="flip", share=share))
    flipped = [a.label != b.label for critique in critiques for a, b in zip(critique.spans, plain(), strict=True)]
    assert sum(flipped) / len(flipped) == pytest.approx(share, abs=0.03)
    assert all(span.text == WORDS[span.start : span.end] for critique in critiques for span in critique.spans)


def test_displaced_spans_keep_length_and_label_and_still_quote_the_response() -> None:
    critiques = noisy_critiques(noisy(kind="displace", share=0.4))
    moved = 0
    for critique in critiques:
        Feedback.of(example("a"), WORDS, critique, EveryWord.source)  # refuses a span that quotes something else
        for span, before in zip(critique.spans, plain(), strict=True):
            assert (span.end - span.start, span.label) == (before.end - before.start, before.label)
            moved += span.start != before.start
    assert moved / (len(plain()) * len(critiques)) == pytest.approx(0.4, abs=0.03)


@pytest.mark.parametrize("kind", ["flip", "displace", "drop"])
def test_noise_depends_on_the_response_and_the_seed_alone_and_is_counted(kind: str) -> None:
    critic = noisy(kind=kind, share=0.4)
    alone = critic.critique([example("b")], [WORDS])
    assert critic.critique([example("a"), example("b")], ["other words", WORDS])[1:] == alone
    assert noisy_critiques(noisy(kind=kind, share=0.4), 5) != noisy_critiques(
        noisy(seed=1, kind=kind, share=0.4), 5
    )
    every = noisy(kind=kind, share=1.0)
    judgements = every.critique([example("a"), example("b")], [WORDS, "broken"])
    assert isinstance(judgements[0], Critique) and (judgements[0].text, judgements[0].score) == ("said", 0.5)
    assert isinstance(judgements[1], Failure)
    spans = float(len(plain()))
    assert every.counts() == {"noise_spans": spans, "noise_altered": spans}
    assert every.counts() == {"noise_spans": 0.0, "noise_altered": 0.0}


def test_a_span_of_the_complete_response_stays_and_overlap_is_inherited() -> None:
    critic = noisy(kind="displace", share=1.0)
    (critique,) = critic.critique([example("a")], ["word"])
    assert isinstance(critique, Critique) and critique.spans[0].text == "word"
    assert get_overlap(critic) == "allowed"
    alone = EveryWord()
    alone.overlap = "never"  # type: ignore[attr-defined]
    assert get_overlap(NoisyCritic(alone, NoiseSettings(), 0)) == "never"


def test_the_command_line_selects_the_noise() -> None:
    config = load_config(find_config("demo"), ["--critic.kind", f"{CRITIC}:drop_20_of_reference"])
    with critic_factory(config) as factory, factory.open() as critic:
        pass
    assert isinstance(critic, NoisyCritic) and isinstance(critic.critic, ReferenceCritic)
    assert critic.settings == NoiseSettings(kind="drop", share=0.2)
    for name in ("drop_20_of_me", "lose_20_of_program"):
        with pytest.raises(UserError, match=f"noisy_critic has no {name}"):
            spec_of(f"{CRITIC}:{name}")


def test_a_noisy_reward_model_is_treated_as_a_reward_model(tmp_path: Path) -> None:
    """Training needs the noisy model's file, and is refused if the model is unfit."""
    spec = spec_of(f"{CRITIC}:flip_10_of_reward_model")
    assert (spec.kind, spec.source, spec.reference_free) == ("reward_model", "reward_model", True)
    words = (
        f"--run.folder={tmp_path}",
        f"--critic.kind={CRITIC}:flip_10_of_reward_model",
    )
    config = load_config(find_config("demo"), words)
    assert {"the critic", "the reward model"} <= set(critic_inputs(config))
    (tmp_path / "reward_model").mkdir()
    (tmp_path / "reward_model" / "gate.json").write_text('{"fit": false, "reasons": ["it is blind"]}')
    with pytest.raises(UserError, match="not fit to train against: it is blind"):
        refuse_unfit_reward_model(config)
    recipe = tmp_path / "noisy.yaml"
    recipe.write_text(f"critic: {{kind: '{CRITIC}:flip_10_of_reward_model'}}")
    assert methods_of([str(recipe)], config)["noisy"].after == ("reward model",)
