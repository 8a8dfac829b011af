"""The critic of the training loop: what it pays for is kept, and it reads as `annotate` reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chat_server import KEY, ChatServer, responses_file, said, servers_of
from text2grad.config import Config, find_config, load_config
from text2grad.config.sections import CriticSettings
from text2grad.critics.table import CRITICS
from text2grad.durable import progress
from text2grad.errors import EXIT_BUDGET, UserError
from text2grad.feedback import Critique, Example, Failure, Feedback, Message
from text2grad.jsonl import read_jsonl
from text2grad.sandbox import Runner
from text2grad.stages import train as stage
from text2grad.stages.annotate import run_annotate
from text2grad.stages.critics import CriticFactory, RewardModel, critic_factory, critic_inputs
from text2grad.stages.paid import AnnotateOptions
from text2grad.stages.run_folder import RunFolder
from text2grad.stages.training import DataFacts

TASK: Any = SimpleNamespace(critic_prompt="qa")
RESPONSES = ["one answer.", "two answers."]
ANSWERS = {
    "normalised": '{"critique": "c", "good_spans": ["one  answer"], "poor_spans": ["answer"]}',
    "lost": '{"critique": "c", "good_spans": ["not there"], "poor_spans": ["answer"]}',
    "mended": "{critique: 'c', good_spans: ['answer'], poor_spans: []}",
    "refused": "I'm sorry, but I can't help with that.",
}
Judge = Callable[..., ChatServer]


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Iterator[Judge]:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with servers_of(lambda answer: ChatServer(lambda name, turn, body: said(answer))) as start:
        yield start


def settings(tmp_path: Path, server: ChatServer, *words: str) -> Config:
    endpoint = ("--critic.prompted.base_url", server.url, "--critic.prompted.model", "gpt-4o")
    given = ("--critic.kind", "prompted", "--annotate.critic", "prompted", "--task.name", "qa", *endpoint)
    return load_config(find_config("demo"), ["--run.folder", str(tmp_path / "run"), *given, *words])


def asked(config: Config, journal: Path, responses: Sequence[str] = RESPONSES) -> list[Any]:
    examples = [example(f"r-{index}") for index in range(len(responses))]
    with critic_factory(config, "prompted") as factory, factory.open(TASK, journal=journal) as critic:
        return critic.critique(examples, responses)


def example(id: str) -> Example:
    return Example(id=id, prompt=(Message(role="user", content="Why?"),))


def test_an_answer_is_paid_for_once(judge: Judge, tmp_path: Path) -> None:
    server = judge(ANSWERS["normalised"])
    config, journal = settings(tmp_path, server), tmp_path / "critic.journal"
    first = asked(config, journal, [*RESPONSES, RESPONSES[0]])
    assert isinstance(first[0], Critique) and first[0] == first[2]
    paid = len(server.bodies)
    assert asked(config, journal) == first[:2] and len(server.bodies) == paid
    asked(config, journal, ["another answer."])
    assert len(server.bodies) > paid


@pytest.mark.parametrize("name", ANSWERS)
def test_one_answer_is_one_critique_on_both_roads(judge: Judge, tmp_path: Path, name: str) -> None:
    server = judge(ANSWERS[name])
    config = settings(tmp_path, server)
    (in_the_loop,) = asked(config, tmp_path / "critic.journal", RESPONSES[:1])
    file = responses_file(tmp_path / "r.jsonl", ["one"])
    run_annotate(config, file, tmp_path / "out.jsonl", AnnotateOptions(canaries=False))
    (record,) = read_jsonl(tmp_path / "out.jsonl", Feedback)
    same = Feedback.of(example("r-0"), RESPONSES[0], in_the_loop, record.source)
    assert record.model_dump(exclude={"usage"}) == same.model_dump(exclude={"usage"})
    assert isinstance(in_the_loop, Failure) == (name in ("lost", "refused"))


def test_the_loop_keeps_its_budget_and_a_higher_one_goes_on(judge: Judge, tmp_path: Path) -> None:
    server = judge(ANSWERS["normalised"])
    responses = [f"one answer, number {number}." for number in range(40)]
    config = settings(tmp_path, server, "--critic.prompted.budget_usd", "0.06")
    with pytest.raises(UserError, match=r"the budget of 0\.06 USD is reached") as caught:
        asked(config, tmp_path / "critic.journal", responses)
    assert caught.value.exit_code == EXIT_BUDGET
    one = (1000 * 2.5 + 100 * 10) / 1e6
    assert 5 <= len(server.bodies) <= 0.06 / one
    more = settings(tmp_path, server, "--critic.prompted.budget_usd", "1")
    assert len(asked(more, tmp_path / "critic.journal", responses)) == 40
    assert len(server.bodies) == 40, "nothing is paid twice"


def test_train_keeps_the_journal_in_the_folder_of_its_run(
    judge: Judge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, said_of = judge(ANSWERS["normalised"]), []

    def train(policy: Any, examples: Any, critic: Any, *_: Any, **__: Any) -> None:
        said_of.append(critic.critique([example("r-0")], RESPONSES[:1]))

    monkeypatch.setattr(stage, "train_ppo", train)
    monkeypatch.setattr(stage, "load_policy", lambda settings: None)
    monkeypatch.setattr(RunFolder, "policy", lambda run, *_: None)
    monkeypatch.setattr(
        RunFolder, "task", lambda run: SimpleNamespace(critic_prompt="qa", examples=lambda split: [])
    )
    for _ in range(2):
        stage.run_train(settings(tmp_path, server), "mine")
    assert said_of[0] == said_of[1] and isinstance(said_of[0][0], Critique)
    assert (tmp_path / "run" / "ppo" / "mine" / "critic.journal").stat().st_size > 0
    assert len(server.bodies) == 1, "the second run finds what the first one paid for"


def test_how_a_chat_model_is_asked_may_change_in_an_unfinished_run(judge: Judge, tmp_path: Path) -> None:
    server = judge("")
    before = critic_inputs(settings(tmp_path, server))
    for name, value in (("concurrency", "3"), ("budget_usd", "2")):
        assert critic_inputs(settings(tmp_path, server, f"--critic.prompted.{name}", value)) == before
    assert critic_inputs(settings(tmp_path, server, "--critic.prompted.max_tokens", "9")) != before


def test_the_configuration_has_the_settings_of_the_table() -> None:
    sections = {name: field.annotation for name, field in CriticSettings.model_fields.items() if name != "kind"}
    assert sections == {kind: spec.settings for kind, spec in CRITICS.items() if spec.settings}


OWN_SPEC = """
import text2grad as t2g

class Constant:
    source = t2g.Source(kind="program")

    def __init__(self, seed):
        self.seed = seed

    def critique(self, examples, responses):
        return [t2g.Critique(text=str(self.seed), score=1.0) for _ in responses]

CONSTANT = t2g.CriticSpec("constant", make=lambda settings, ready: Constant(ready.seed))
"""


def test_a_spec_of_ones_own_is_made_of_what_the_run_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_spec.py").write_text(OWN_SPEC)
    monkeypatch.syspath_prepend(str(tmp_path))
    config = load_config(find_config("demo"), ["--critic.kind", "own_spec:CONSTANT", "--run.seed", "7"])
    with critic_factory(config) as factory, factory.open() as critic:
        assert critic.critique([example("a")], ["x"]) == [Critique(text="7", score=1.0)]
    refused = pytest.raises(UserError, match=r"own_spec has no CONSTANTS .did you mean 'CONSTANT'")
    with critic_factory(config, "own_spec:CONSTANTS") as factory, refused, factory.open():
        pass
    before = critic_inputs(config)["the critic"]
    (tmp_path / "own_spec.py").write_text(f"{OWN_SPEC}# changed")
    assert critic_inputs(config)["the critic"] != before


@pytest.mark.parametrize(("kind", "head"), [("generative", object()), ("tagger", None)])
def test_a_reward_model_of_the_other_kind_is_refused(kind: str, head: object) -> None:
    config = load_config(find_config("demo"), ["--reward_model.kind", kind])
    model: Any = SimpleNamespace(span_head=head)
    with pytest.raises(UserError, match=r"the reward model in .* was trained as"):
        RewardModel(RunFolder.of(config), config.reward_model, 1).over(model)


STRICT = "from solution import f\n\ndef test():\n    assert f(2) == 4 and f(3) == 9\n"
WEAK = "from solution import f\n\ndef test():\n    assert f(2) is not None\n"
SQUARE = "def f(x):\n    return x * x\n"


def task_with(id: str, tests: str, reference: str | None = SQUARE) -> Example:
    return Example(
        id=id, prompt=(Message(role="user", content="Square."),), meta={"tests": tests}, reference=reference
    )


def test_tasks_that_judge_nothing_are_left_out_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ["--run.folder", str(tmp_path / "run")]
    config = load_config(find_config("demo"), [*folder, "--critic.program.gate", "true"])
    tasks = [task_with("a", STRICT), task_with("b", WEAK), task_with("c", STRICT, "def f(x):\n    return 4\n")]
    with Runner(5.0) as runner:
        factory = CriticFactory(config, "program", runner)
        assert [each.id for each in factory.admitted(tasks)] == ["a"]
        said = capsys.readouterr().err
        assert said.startswith(
            "2 of 3 tasks are left out because their tests do not judge a program: 1 where the tests pass for a"
        )
        assert "1 where the reference: failed" in said and said.count("\n") == 1
        with pytest.raises(UserError, match=r"1 of 1 tasks .*--critic\.program\.gate false"):
            factory.admitted(tasks[1:2])
        assert CriticFactory(config, "reward_model", runner).admitted(tasks) == tasks
    ungated = load_config(find_config("demo"), ["--critic.program.gate", "false"])
    with critic_factory(ungated, "program") as factory:
        assert factory.admitted(tasks) == tasks


def test_a_task_is_judged_by_the_gate_once_in_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    given = ["--run.folder", str(run), "--critic.program.gate", "true"]
    config, tasks = load_config(find_config("demo"), given), [task_with("a", STRICT), task_with("b", WEAK)]
    with Runner(5.0) as runner:
        assert CriticFactory(config, "program", runner).admitted(tasks) == tasks[:1]
    with Runner(5.0) as runner:
        factory = CriticFactory(config, "program", runner)
        assert factory.admitted(tasks) == tasks[:1]
        said = f"```python\n{SQUARE}```"
        with factory.open() as critic:
            good, weak = critic.critique(tasks, [said, said])
        assert isinstance(good, Critique) and good.score == 1.0
        assert isinstance(weak, Failure) and "weak_tests" in weak.message
        assert not any(job.lenient for job in runner._verdicts)  # no stub was run
        patient = load_config(find_config("demo"), [*given, "--sandbox.seconds", "7"])
        assert CriticFactory(patient, "program", runner).admitted(tasks) == tasks[:1]
    assert len(json.loads((run / "gates.json").read_text(encoding="utf-8"))) == 4
    assert "checking the tests of each task: 1/2, " in capsys.readouterr().err


def test_annotate_writes_nothing_about_a_task_that_judges_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"prompt": "Square.", "response": f"```python\n{SQUARE}```", "reference": SQUARE}
    rows = [{**row, "id": id, "meta": {"tests": tests}} for id, tests in (("a", STRICT), ("b", WEAK), ("c", WEAK))]
    responses = tmp_path / "responses.jsonl"
    responses.write_text("".join(json.dumps(each) + "\n" for each in rows), encoding="utf-8")
    given = ["--run.folder", str(tmp_path / "run"), "--critic.program.gate", "true", "--annotate.critic", "program"]
    run_annotate(load_config(find_config("demo"), given), responses)
    (record,) = read_jsonl(tmp_path / "run" / "feedback.jsonl", Feedback)
    assert record.id == "a" and record.meta["outcome"] == "passed"
    assert "1 of 2 tasks are left out" in capsys.readouterr().err


def test_train_leaves_out_tasks_that_judge_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trained: list[str] = []
    tasks = {"train": [task_with("a", STRICT), task_with("b", WEAK)]}
    task = SimpleNamespace(critic_prompt="code", examples=lambda split: tasks.get(split, []))

    def train(policy: Any, examples: Any, *_: Any, **__: Any) -> None:
        trained.extend(each.id for each in examples)

    monkeypatch.setattr(stage, "train_ppo", train)
    monkeypatch.setattr(stage, "load_policy", lambda settings: None)
    monkeypatch.setattr(RunFolder, "policy", lambda run, *_: None)
    monkeypatch.setattr(stage, "facts_of_prompts", lambda policy, examples: DataFacts(len(examples), 5))
    monkeypatch.setattr(RunFolder, "task", lambda run: task)
    given = ["--run.folder", str(tmp_path / "run"), "--critic.kind", "program", "--critic.program.gate", "true"]
    stage.run_train(load_config(find_config("demo"), given), "mine")
    assert trained == ["a"]
    assert "1 of 2 tasks are left out" in capsys.readouterr().err


Z = '{"critique": "c", "good_spans": ["answer", "not there"], "poor_spans": [], "score": 0.5}'


def served(tmp_path: Path, url: str, *words: str) -> Config:
    given = ("--critic.kind", "reward_model", "--critic.reward_model.base_url", url)
    return load_config(find_config("demo"), ["--run.folder", str(tmp_path / "run"), *given, *words])


def criticised(config: Config, responses: Sequence[str]) -> list[Any]:
    with critic_factory(config) as factory, factory.open(TASK) as critic:
        assert critic.source.kind == "reward_model"
        return critic.critique([example(f"r-{index}") for index in range(len(responses))], responses)


def test_a_served_reward_model_is_asked_as_it_was_trained(judge: Judge, tmp_path: Path) -> None:
    server = judge(Z)
    words = ("--critic.reward_model.folder", "models/critic", "--reward_model.max_new_tokens", "77")
    (judgement,) = criticised(served(tmp_path, server.url, *words), ["one answer."])
    assert (judgement.score, judgement.quotes.unmatched, judgement.lost) == (0.5, 1, ("not there",))
    (body,) = server.bodies
    assert body.pop("messages")[-1]["content"].startswith("<question>\nWhy?")
    assert body == {"model": "models/critic", "max_tokens": 77, "temperature": 0.0, "stream": False}


def test_a_served_reward_model_is_asked_once_like_one_of_this_process(judge: Judge, tmp_path: Path) -> None:
    server = judge("no z")
    config = served(tmp_path, server.url, "--evaluate.token_reward", "true")
    (judgement,) = criticised(config, ["one answer."])
    assert isinstance(judgement, Failure) and judgement.kind == "invalid" and len(server.bodies) == 1
    with critic_factory(config) as factory, factory.heldout_critic() as critic:
        assert critic is not None and len(critic.critique([example("a")], ["one answer."])) == 1


HEADS = (("--reward_model.kind", "tagger"), ("--reward_model.score_head", "true"), ())


@pytest.mark.parametrize("words", HEADS, ids=["tagger", "score head", "file"])
def test_a_reward_model_with_a_head_is_not_asked_through_a_chat_server(tmp_path: Path, words: Any) -> None:
    if not words:
        (tmp_path / "run" / "reward_model" / "policy").mkdir(parents=True)
        (tmp_path / "run" / "reward_model" / "policy" / "span_head.safetensors").touch()
    config = served(tmp_path, "http://127.0.0.1:9/v1", *words)
    with pytest.raises(UserError, match=r"text2grad serve .*run, and set --critic\.kind"):
        criticised(config, ["one answer."])


def test_errors_about_a_served_reward_model_name_its_settings(tmp_path: Path) -> None:
    grounded = served(tmp_path, "http://127.0.0.1:9/v1", "--reward_model.grounded", "on")
    with pytest.raises(UserError, match=r"reward_model\.grounded on"):
        criticised(grounded, ["one answer."])
    with pytest.raises(UserError, match=r"running\? check critic\.reward_model\.base_url"):
        criticised(served(tmp_path, "http://127.0.0.1:9/v1"), ["one answer."])
