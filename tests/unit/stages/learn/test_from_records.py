"""The stages that learn from answers on record: offline, imitation of the best, revisions, reflection."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from text2grad.chat import Completion
from text2grad.config import PRESETS, Config, load_config
from text2grad.critics.prompted import PromptedCritic
from text2grad.errors import UsageError, UserError
from text2grad.eval.reflection import Reflection, judged
from text2grad.feedback import Critique, Example, Failure, Feedback, Judgement, Message, Source, Span, read_jsonl
from text2grad.feedback import write_jsonl as write
from text2grad.policy.local_chat import LocalChat
from text2grad.stages.judge import revise
from text2grad.stages.learn import imitate, logged, offline, refine
from text2grad.stages.learn.imitate import Choice, chosen_answers, run_sft_on_records
from text2grad.stages.learn.offline import run_train_offline
from text2grad.stages.learn.refine import run_refine
from text2grad.stages.measure import reflect
from text2grad.stages.measure.reflect import run_reflect
from text2grad.stages.run.policies import policy_name
from text2grad.tasks.base import Split
from tiny_runs import tiny_model


def example(name: str) -> Example:
    return Example(id=name, prompt=(Message(role="user", content=f"Say {name}."),), reference=name)


class Words:
    """Three prompts to train on and two held out; an answer is right if it has the word."""

    name, critic_prompt = "words", "qa"

    def examples(self, split: Split) -> list[Example]:
        return [example(name) for name in (("x", "y") if split == "heldout" else ("a", "b", "c"))]

    def scores(self, example: Example, response: str) -> dict[str, float]:
        return {"right": float(example.reference in response)}


class Finder:
    """Finds the word, or blames the whole answer."""

    source = Source(kind="program")

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        return [self.judge(*pair) for pair in zip(examples, responses, strict=True)]

    def judge(self, asked: Example, said: str) -> Judgement:
        word = asked.prompt[0].content[4:-1]
        right = word in said
        spans = (Span(start=0, end=len(said), label=1 if right else -1, text=said),) if said else ()
        return Critique(text=f"wants {word}", spans=spans, score=1.0 if right else -1.0)


def record(name: str, response: str, **more: Any) -> Feedback:
    asked = example(name)
    said = Finder().judge(asked, response)
    return Feedback.of(asked, response, said, Source(kind="program")).model_copy(update=more)


RECORDS = [record("a", "so a"), record("a", "so b"), record("b", "so c"), record("c", "c"), record("c", "cc")]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """A run without stages behind it, on the task above."""
    for stage in (offline, imitate, refine, reflect):
        monkeypatch.setattr(stage, "task_of", lambda config: Words())
    model = str(tiny_model(tmp_path / "model"))
    words = ["--run.folder", str(tmp_path / "run"), "--policy.model", model, "--generation.max_new_tokens", "6"]
    words += ["--offline.epochs", "1", "--sft.epochs", "1", "--run.threads", "1", "--refine.samples", "2"]
    words += ["--evaluate.samples", "1"]
    return load_config(PRESETS / "demo.yaml", words)


def file_of(config: Config, records: Sequence[Feedback]) -> Path:
    path = config.run.folder.parent / "records.jsonl"
    write(path, records)
    return path


def test_offline_writes_a_policy_that_evaluate_finds(config: Config) -> None:
    more = [record("x", "x"), RECORDS[0].model_copy(update={"error": Failure(kind="refused", message="no")})]
    summary = run_train_offline(config, file_of(config, [*RECORDS, *more]), "offline").as_dict()
    assert (summary["answers"], summary["spans"]) == (5, 5)
    assert (summary["heldout_records"], summary["failed_records"]) == (1, 1)
    rows = [json.loads(line) for line in (config.run.folder / "ppo/offline/metrics.jsonl").read_text().splitlines()]
    assert {"loss", "kl", "grad_norm"} <= rows[0].keys()
    assert policy_name(config, "offline") == summary["out"]


def test_an_answer_that_is_too_long_is_left_out_and_named(
    config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    long = record("b", "so " * 4000 + "b", id="essay")
    summary = run_train_offline(config, file_of(config, [*RECORDS, long]), "offline").as_dict()
    assert (summary["answers"], summary["too_long"]) == (5, 1)
    [line] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("left out")]
    assert "1 of 6 answers" in line and "that of 'essay' has" in line
    with pytest.raises(UserError, match=r"nothing to train on: 1 of 1 answers, .* 'essay' has \d+ \(shorten them"):
        run_train_offline(config, file_of(config, [long]), "alone")


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([record("a", "a", spans=())], r"no words are marked in any of 1 records .text2grad annotate --anchor"),
        ([record("a", " "), *RECORDS], "1 of 6 records have no response, 'a' first"),
        ([record("x", "x")], "nothing to train on, 1 heldout records"),
        ([record("z", "z"), record("w", "w")], "none of 2 records is about a prompt of the task 'demo'"),
        ([], "holds no records"),
    ],
)
def test_what_cannot_be_learned_from_is_one_line(config: Config, records: list[Feedback], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        run_train_offline(config, file_of(config, records), "offline")
    assert "\n" not in str(caught.value) and not (config.run.folder / "ppo").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            '{"id": "1", "prompt": [{"role": "user", "content": "Say a."}], "source": {"kind": "llm"}}',
            "1: response",
        ),
        ('{"task_id": "1", "solution": "x"}', r"1: id: Field required"),
        ("def f(x):", "1: not JSON"),
    ],
)
def test_another_file_is_one_line(config: Config, text: str, words: str) -> None:
    path = config.run.folder.parent / "other.jsonl"
    path.write_text(text + "\n", encoding="utf-8")
    with pytest.raises(UserError, match=words):
        run_train_offline(config, path, "offline")
    with pytest.raises(UserError, match="no feedback in"):
        run_train_offline(config, path.with_name("none.jsonl"), "offline")


def test_marks_are_not_needed_where_the_score_alone_is_paid(config: Config) -> None:
    scalar = config.model_copy(update={"credit": config.credit.model_copy(update={"scheme": "last_token"})})
    assert run_train_offline(scalar, file_of(config, [record("a", "a", spans=())]), "x").spans == 0


def test_the_best_is_the_first_of_the_highest_scores_that_pass() -> None:
    scored = [
        record("c", text, score=score) for text, score in (("c1", 0.5), ("c2", 1.0), ("c3", 1.0), ("c4", None))
    ]
    given = [*RECORDS[:3], *scored]

    def said(choice: Choice) -> list[str]:
        return [each.response for each in chosen_answers(given, choice)]

    assert said(Choice()) == ["so a", "c1", "c2", "c3"]
    assert said(Choice(best=True)) == ["so a", "c2"]
    assert said(Choice(best=True, above=-1.5)) == ["so a", "so c", "c2"]


def test_imitation_counts_its_samples_and_goes_on_from_a_policy_that_is_named(config: Config) -> None:
    source = file_of(config, RECORDS)
    first = run_sft_on_records(config, source, "one", Choice(best=True))
    assert (first.samples, first.prompts, first.imitated, first.prompts_without) == (5, 3, 2, 1)
    second = run_sft_on_records(config, source, "two", start="one")
    assert second.imitated == 3 and second.out.endswith("ppo/two/policy")
    with pytest.raises(UserError, match="no policy 'three'"):
        run_sft_on_records(config, source, "four", start="three")
    with pytest.raises(UserError, match=r"none of 1 answers has a score above 0 .*--above -1"):
        run_sft_on_records(config, file_of(config, [RECORDS[1]]), "five")


def speak(monkeypatch: pytest.MonkeyPatch, answers: Sequence[Completion | Failure]) -> list[str]:
    """The local model's answers, one after the other; what it is asked."""
    script, asked = iter(answers), []

    def complete(self: LocalChat, conversations: Any) -> list[Completion | Failure]:
        asked.extend(turns[-1].content for turns in conversations)
        self.usage.update({"input_tokens": 10 * len(conversations), "output_tokens": 5 * len(conversations)})
        return [next(script) for _ in conversations]

    monkeypatch.setattr(LocalChat, "complete", complete)
    return asked


def said(*texts: str) -> list[Completion | Failure]:
    return [Completion(text=text) for text in texts]


def test_imitation_ends_at_the_loss_at_which_sft_does(config: Config, capsys: pytest.CaptureFixture[str]) -> None:
    changes = {"least_loss": 100.0, "epochs": 6.0, "batch_size": 2}
    config = config.model_copy(update={"sft": config.sft.model_copy(update=changes)})
    source = file_of(config, [record(name, name) for name in "abc"])
    assert run_sft_on_records(config, source, "short", start=config.policy.model).metrics["steps"] == 1
    assert "short: ended after 1 of 9 updates, with a loss below 100 nats a token" in capsys.readouterr().err


def test_refine_revises_what_was_blamed_and_keeps_what_is_of_use(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refine, "open_critic", scripted(Finder()))
    cut = Completion(text="so b", truncated=True)
    asked = speak(monkeypatch, [*said("so a", "so b"), *said("really: b"), cut])
    summary = run_refine(config, file_of(config, [each for each in RECORDS if each.id != "c"])).as_dict()
    assert "wants a" in asked[0] and "so b" in asked[0] and "wants b" in asked[2]
    assert (summary["answers"], summary["nothing_to_mend"], summary["revisions"]) == (3, 1, 4)
    assert summary["answers_revised"] == 2
    assert summary["refused"] == {"copied": 1, "truncated": 1}
    assert (summary["records"], summary["passed"], summary["output_tokens"]) == (2, 2, 20)
    kept = list(read_jsonl(config.run.folder / "refined.jsonl", Feedback))
    assert [(each.id, each.response, each.score) for each in kept] == [("a", "so a", 1.0), ("b", "really: b", 1.0)]
    assert run_sft_on_records(config, Path(summary["out"]), "ilf", Choice(best=True)).imitated == 2


def test_refine_takes_so_many_answers_of_each_prompt(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refine, "open_critic", scripted(Finder()))
    records = [record("a", "so b"), record("a", "so c"), record("b", "so c")]
    once = config.model_copy(update={"refine": config.refine.model_copy(update={"answers_per_prompt": 1})})
    asked = speak(monkeypatch, said("so a", "so a", "so b", "so b"))
    summary = run_refine(once, file_of(config, records)).as_dict()
    assert summary["answers_revised"] == 2 and summary["nothing_to_mend"] == 0
    assert not any("so c" in each and "Say a" in each for each in asked)


def test_refine_without_anything_to_revise_or_to_keep_is_one_line(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="no critique of 1 leaves anything to mend"):
        run_refine(config, file_of(config, RECORDS[:1]))
    speak(monkeypatch, [Failure(kind="unsupported", message="long"), *said(" ")])
    with pytest.raises(UserError, match="no revision of 2 is of use: 1 empty, 1 unsupported"):
        run_refine(config, file_of(config, [RECORDS[1]]))
    assert not (config.run.folder / "refined.jsonl").exists()


def test_a_refiner_learns_from_what_fell_short_to_what_passed(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def train(policy: object, pairs: Sequence[Any], *rest: object, **more: object) -> dict[str, float]:
        seen.extend(pairs)
        return {}

    monkeypatch.setattr(imitate, "train_supervised", train)
    records = [record("a", "so b"), record("a", "a"), record("b", "so c"), record("a", "then c")]
    run_sft_on_records(config, file_of(config, records), "refiner", Choice(revise=True))
    assert [pair.target for pair in seen] == ["a", "a"], "b has no answer that passed"
    asked = [pair.prompt[-1].content for pair in seen]
    assert "so b" in asked[0] and "then c" in asked[1] and all("wants a" in each for each in asked)
    with pytest.raises(UserError, match="no prompt has an answer that passed and one with something to mend"):
        run_sft_on_records(config, file_of(config, records[1:3]), "refiner", Choice(revise=True))


class scripted:
    """`open_critic`, with a critic of one's own."""

    def __init__(self, critic: Any) -> None:
        self.critic = critic

    def __call__(self, *words: Any) -> scripted:
        return self

    def __enter__(self) -> Any:
        return self.critic

    def __exit__(self, *words: object) -> None:
        pass


class Blind(Finder):
    """Notes what it is shown."""

    def __init__(self) -> None:
        self.shown: list[Example] = []

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        self.shown += examples
        return super().critique(examples, responses)


def test_reflection_stops_where_the_critic_finds_nothing_and_shows_it_no_reference(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    critic = Blind()
    monkeypatch.setattr(reflect, "open_critic", scripted(critic))
    monkeypatch.setattr(reflect, "sample", lambda *_: [([1, 2], "so x"), ([1, 2, 3], "so a")])
    asked = speak(monkeypatch, said("still no", "then y", "y at once"))
    found = run_reflect(config, str(config.policy.model), 3).as_dict()
    ways = ("greedy", "greedy_reflected_1", "greedy_reflected_2", "greedy_reflected_3", "sampled_reflected_1")
    assert [found[f"{way}_right"] for way in ways] == [0.5, 0.5, 1.0, 1.0, 1.0]
    assert found["let_stand"] == 4 and len(asked) == 3 and "still no" in asked[1]
    assert found["policy_output_tokens"] == (5 + 10) + (5 + 5)
    assert all(not each.reference and not each.meta for each in critic.shown)
    place = Path(found["out"])
    assert json.loads(place.read_text())["greedy_reflected_2_right"] == 1.0
    scores = json.loads(place.with_name(f"{place.stem}.scores.json").read_text())
    assert scores["sampled"] == {"x": {"right": 1.0}, "y": {"right": 1.0}}
    assert [row["response"] for row in json.loads(place.with_name(f"{place.stem}.answers.json").read_text())] == [
        "so x",
        "then y",
    ]


def test_reflection_has_all_measures_of_texts_before_and_after_each_round(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = config.evaluate.model_copy(update={"perplexity": str(config.policy.model)})
    monkeypatch.setattr(reflect, "open_critic", scripted(Finder()))
    monkeypatch.setattr(reflect, "sample", lambda *_: [([1, 2], "so x"), ([1, 2, 3], "so a")])
    speak(monkeypatch, said("then x", "then y", "x at once", "y at once"))
    found = run_reflect(config.model_copy(update={"evaluate": read}), str(config.policy.model), 1).as_dict()
    for way in ("greedy", "greedy_reflected_1", "sampled", "sampled_reflected_1"):
        names = {name.removeprefix(f"{way}_") for name in found if name.startswith(way)}
        assert {"right", "rouge1", "rouge2", "rouge_l", "bleu", "sentence_bleu", "perplexity"} <= names, way
    assert found["greedy_perplexity"] != found["greedy_reflected_1_perplexity"]
    assert found["measured_by"] == {"perplexity_of": str(config.policy.model)}


def test_a_revision_that_is_refused_ends_the_answers_rounds(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reflect, "open_critic", scripted(Finder()))
    monkeypatch.setattr(reflect, "sample", lambda *_: [([1], "no"), ([1], "no")])
    asked = speak(monkeypatch, said("no", "y", "no", "no"))
    found = run_reflect(config, str(config.policy.model), 2).as_dict()
    assert found["refused"] == {"copied": 3} and found["greedy_reflected_2_right"] == 0.5 and len(asked) == 4
    assert found["sampled_reflected_2_right"] == 0.0


@pytest.mark.parametrize("kind", ["program", "reference", "human"])
def test_a_critic_that_knows_the_answer_is_refused(config: Config, kind: str) -> None:
    knowing = config.model_copy(update={"critic": config.critic.model_copy(update={"kind": kind})})
    with pytest.raises(UsageError, match=f"the critic {kind} knows what the answers are measured by"):
        run_reflect(knowing, str(config.policy.model), 1)


def test_the_tokens_of_a_local_critic_are_counted(config: Config) -> None:
    from text2grad.policy.load import load_policy

    chat = LocalChat(load_policy(config.policy), config.generation, "critic")
    critic = PromptedCritic(chat, "{{prompt}} {{response}}", Source(kind="reward_model"))
    state = Reflection(["so a"], [0])
    judged([example("a")], state, critic)
    assert state.tokens["critic_input_tokens"] > 5 and 0 < state.tokens["critic_output_tokens"] <= 6
    assert state.failed + state.let_stand <= 1


def test_a_prompt_without_a_place_for_the_critique_is_refused(config: Config, tmp_path: Path) -> None:
    own = tmp_path / "own.txt"
    own.write_text("{{prompt}} {{response}}", encoding="utf-8")
    changed = config.model_copy(update={"refine": config.refine.model_copy(update={"prompt": str(own)})})
    with pytest.raises(UserError, match=r"has no \{\{meta\.critique\}\}"):
        revise.revision_prompt(changed)
    assert logged.answers_in(file_of(config, RECORDS), config, Words()).left_out == {  # type: ignore[arg-type]
        "failed_records": 0,
        "heldout_records": 0,
    }
