"""Baselines that learn from recorded answers: imitation of the best, revisions, reflection."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from text2grad.chat import Completion
from text2grad.config import PRESETS, Config, load_config
from text2grad.critics.prompted import PromptedCritic
from text2grad.errors import UsageError, UserError
from text2grad.feedback import Critic, Example, Failure, Feedback, Judgement, Source
from text2grad.jsonl import read_jsonl
from text2grad.policy.local_chat import LocalChat
from text2grad.stages.critics import CriticFactory
from text2grad.stages.run_folder import RunFolder
from text2grad_lab.baselines import imitate, reflect
from text2grad_lab.baselines.imitate import Choice, run_imitate, select_answers
from text2grad_lab.baselines.refine import run_refine
from text2grad_lab.baselines.reflect import Reflector, run_reflect
from text2grad_lab.baselines.revision import revision_prompt
from tiny_runs import tiny_model
from word_task import RECORDS, Finder, Words, example, file_of, record


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """A run without earlier stages on the one-word task."""
    monkeypatch.setattr(RunFolder, "task", lambda run: Words())
    model = str(tiny_model(tmp_path / "model"))
    words = ["--run.folder", str(tmp_path / "run"), "--policy.model", model, "--generation.max_new_tokens", "6"]
    words += ["--sft.epochs", "1", "--run.threads", "1", "--extra.refine.samples", "2", "--evaluate.samples", "1"]
    return load_config(PRESETS / "demo.yaml", words)


@pytest.fixture
def play_critic(monkeypatch: pytest.MonkeyPatch) -> Callable[[Critic], None]:
    """Replace the critic that `refine` and `reflect` open."""

    def play(critic: Critic) -> None:
        @contextmanager
        def open_critic(*arguments: object, **named: object) -> Iterator[Critic]:
            yield critic

        monkeypatch.setattr(CriticFactory, "open", open_critic)

    return play


@pytest.fixture
def play_policy(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Replace the local model's answers by a script; the returned list collects its prompts."""

    def play(*answers: str | Completion | Failure) -> list[str]:
        script = iter([Completion(text=answer) if isinstance(answer, str) else answer for answer in answers])
        prompts: list[str] = []

        def complete(self: LocalChat, conversations: Any) -> list[Completion | Failure]:
            prompts.extend(turns[-1].content for turns in conversations)
            counts = {"input_tokens": 10 * len(conversations), "output_tokens": 5 * len(conversations)}
            self.usage.update(counts)
            return [next(script) for _ in conversations]

        monkeypatch.setattr(LocalChat, "complete", complete)
        return prompts

    return play


def test_the_best_answer_is_the_first_with_the_highest_passing_score() -> None:
    scores = (("c1", 0.5), ("c2", 1.0), ("c3", 1.0), ("c4", None))
    records = [*RECORDS[:3], *(record("c", text, score=score) for text, score in scores)]

    def responses(choice: Choice) -> list[str]:
        return [answer.response for answer in select_answers(records, choice)]

    assert responses(Choice()) == ["so a", "c1", "c2", "c3"]
    assert responses(Choice(best=True)) == ["so a", "c2"]
    assert responses(Choice(best=True, above=-1.5)) == ["so a", "so c", "c2"]


def test_imitation_counts_its_samples_and_starts_from_the_named_policy(config: Config) -> None:
    source = file_of(config, RECORDS)
    first = run_imitate(config, source, "one", Choice(best=True))
    assert (first.samples, first.prompts, first.imitated, first.prompts_without) == (5, 3, 2, 1)
    second = run_imitate(config, source, "two", Choice(), start="one")
    assert second.imitated == 3 and second.out.endswith("ppo/two/policy")
    with pytest.raises(UserError, match="'three'"):
        run_imitate(config, source, "four", Choice(), start="three")
    with pytest.raises(UserError, match="--above -1"):
        run_imitate(config, file_of(config, [RECORDS[1]]), "five", Choice())


def test_refine_revises_poor_answers_and_keeps_usable_revisions(
    config: Config, play_critic: Callable[..., None], play_policy: Callable[..., list[str]]
) -> None:
    play_critic(Finder())
    prompts = play_policy("so a", "so b", "really: b", Completion(text="so b", truncated=True))
    source = file_of(config, [answer for answer in RECORDS if answer.id != "c"])
    summary = run_refine(config, source).as_dict()
    assert "wants a" in prompts[0] and "so b" in prompts[0] and "wants b" in prompts[2]
    assert (summary["answers"], summary["nothing_to_mend"], summary["revisions"]) == (3, 1, 4)
    assert summary["answers_revised"] == 2 and summary["refused"] == {"copied": 1, "truncated": 1}
    assert (summary["records"], summary["passed"], summary["output_tokens"]) == (2, 2, 20)
    refined = list(read_jsonl(config.run.folder / "refined.jsonl", Feedback))
    assert [(row.id, row.response, row.score) for row in refined] == [("a", "so a", 1.0), ("b", "really: b", 1.0)]
    assert run_imitate(config, Path(summary["out"]), "ilf", Choice(best=True)).imitated == 2


def test_refine_limits_the_answers_per_prompt(
    config: Config, play_critic: Callable[..., None], play_policy: Callable[..., list[str]]
) -> None:
    play_critic(Finder())
    records = [record("a", "so b"), record("a", "so c"), record("b", "so c")]
    config.extra["refine"]["answers_per_prompt"] = 1
    prompts = play_policy("so a", "so a", "so b", "so b")
    summary = run_refine(config, file_of(config, records))
    assert summary.answers_revised == 2 and summary.nothing_to_mend == 0
    assert not any("so c" in text and "Say a" in text for text in prompts)


def test_refine_fails_without_answers_to_revise_or_usable_revisions(
    config: Config, play_policy: Callable[..., list[str]]
) -> None:
    with pytest.raises(UserError, match="no critique of 1"):
        run_refine(config, file_of(config, RECORDS[:1]))
    play_policy(Failure(kind="unsupported", message="long"), " ")
    with pytest.raises(UserError, match="1 empty, 1 unsupported"):
        run_refine(config, file_of(config, [RECORDS[1]]))
    assert not (config.run.folder / "refined.jsonl").exists()


def test_a_refiner_learns_to_turn_poor_answers_into_passing_ones(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs: list[Any] = []

    def train(policy: object, data: Sequence[Any], *arguments: object, **more: object) -> dict[str, float]:
        pairs.extend(data)
        return {}

    monkeypatch.setattr(imitate, "train_supervised", train)
    records = [record("a", "so b"), record("a", "a"), record("b", "so c"), record("a", "then c")]
    run_imitate(config, file_of(config, records), "refiner", Choice(revise=True))
    assert [pair.target for pair in pairs] == ["a", "a"], "no answer to b passed"
    prompts = [pair.prompt[-1].content for pair in pairs]
    assert "so b" in prompts[0] and "then c" in prompts[1] and all("wants a" in text for text in prompts)
    with pytest.raises(UserError, match="no prompt has both"):
        run_imitate(config, file_of(config, records[1:3]), "refiner", Choice(revise=True))


class RecordingFinder(Finder):
    """A critic that records its examples."""

    def __init__(self) -> None:
        self.shown: list[Example] = []

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        self.shown += examples
        return super().critique(examples, responses)


def test_reflection_revises_criticised_answers_and_hides_the_reference(
    config: Config,
    monkeypatch: pytest.MonkeyPatch,
    play_critic: Callable[..., None],
    play_policy: Callable[..., list[str]],
) -> None:
    critic = RecordingFinder()
    play_critic(critic)
    monkeypatch.setattr(reflect, "sample", lambda *_: [([1, 2], "so x"), ([1, 2, 3], "so a")])
    prompts = play_policy("then y", "y at once")
    summary = run_reflect(config, str(config.policy.model)).as_dict()
    ways = ("greedy", "greedy_reflected", "sampled_reflected")
    assert [summary[f"{way}_right"] for way in ways] == [0.5, 1.0, 1.0]
    assert summary["let_stand"] == 2 and len(prompts) == 2 and "so a" in prompts[0]
    assert summary["policy_output_tokens"] == (5 + 5) + (5 + 5)
    assert critic.shown and all(not recorded.reference and not recorded.meta for recorded in critic.shown)
    place = Path(summary["out"])
    assert json.loads(place.read_text())["greedy_reflected_right"] == 1.0
    scores = json.loads(place.with_name(f"{place.stem}.scores.json").read_text())
    assert scores["sampled"] == {"x": {"right": 1.0}, "y": {"right": 1.0}}
    rows = json.loads(place.with_name(f"{place.stem}.answers.json").read_text())
    assert [row["response"] for row in rows] == ["so x", "then y"]


def test_unusable_revisions_keep_the_answer_and_texts_are_measured(
    config: Config,
    monkeypatch: pytest.MonkeyPatch,
    play_critic: Callable[..., None],
    play_policy: Callable[..., list[str]],
) -> None:
    play_critic(Finder())
    monkeypatch.setattr(reflect, "sample", lambda *_: [([1], "no"), ([1], "no")])
    prompts = play_policy("no", "y", "no", "no")
    summary = run_reflect(config, str(config.policy.model)).as_dict()
    assert summary["refused"] == {"copied": 3} and summary["greedy_reflected_right"] == 0.5 and len(prompts) == 4
    assert summary["sampled_reflected_right"] == 0.0
    for way in ("greedy", "greedy_reflected", "sampled", "sampled_reflected"):
        assert {f"{way}_{name}" for name in ("right", "rouge1", "rouge_l", "bleu")} <= summary.keys()


@pytest.mark.parametrize("kind", ["program", "reference", "human"])
def test_a_critic_that_knows_the_answer_is_refused(config: Config, kind: str) -> None:
    informed = config.model_copy(update={"critic": config.critic.model_copy(update={"kind": kind})})
    with pytest.raises(UsageError, match=kind):
        run_reflect(informed, str(config.policy.model))


def test_the_tokens_of_a_local_critic_are_counted(config: Config) -> None:
    from text2grad.policy.load import load_policy

    policy = load_policy(config.policy)
    critic = PromptedCritic(
        LocalChat(policy, config.generation, "critic"), "{{prompt}} {{response}}", Source(kind="reward_model")
    )
    reflector = Reflector(policy, critic, revision_prompt(), lambda examples, responses: [])
    reflector._criticised([example("a")], ["so a"])
    tokens = reflector.counts.tokens
    assert tokens["critic_input_tokens"] > 5 and 0 < tokens["critic_output_tokens"] <= 6
