"""Rounds: what each is made of, which policy and reward model go on, what an inbox gives."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from text2grad.compare.rounds import BEFORE, FILES, NAME, NEW, SFT, Plan, Round, commands_of, run_loop, table_of
from text2grad.config import Config, find_config, load_config
from text2grad.durable.run import CHECKPOINTS
from text2grad.errors import UsageError, UserError
from text2grad.feedback import Feedback, Message, Source, read_records, write_records
from text2grad.policy.settings import ModelSettings
from text2grad.settings import is_set
from text2grad.stages.judge.intake import run_import
from text2grad.stages.learn.reward_model import learner_settings
from text2grad.stages.measure.evaluate import target_name
from text2grad.stages.run.results import SCORES, measured_on, write_json

START, LOWER = {"p1": 0.0, "p2": 0.4, "p3": 0.5}, {"p1": 0.3, "p2": 0.1, "p3": 0.2}
"""Scores of three problems, and some that are lower within chance."""
STEPS = load_config([find_config("demo")]).ppo.steps
Rates = tuple[float, float]
Scores = float | dict[str, float]
"""The measure of one problem, or of several by name."""


def record(id: str, response: str, prompt: str = "?") -> Feedback:
    source = Source(kind="program", model="p")
    return Feedback(id=id, prompt=(Message(role="user", content=prompt),), response=response, source=source)


def config_in(folder: Path, *words: str) -> Config:
    config = load_config([find_config("demo")], [f"--run.folder={folder}", *words])
    policy = folder / SFT / "policy"
    policy.mkdir(parents=True, exist_ok=True)
    (policy / "weights").write_text("start")
    return config


class Commands:
    """Commands that write what the true ones would: `scores` are (before, after) of each round, `marks` the F1 of
    each round's reward model on the records of its own round and of the next."""

    def __init__(self, scores: Sequence[tuple[Scores, Scores]], marks: Sequence[Rates] = ((0.5, 0.5),) * 9) -> None:
        self.scores, self.marks, self.ran = scores, marks, list[str]()

    def run(self, commands: Round, name: str) -> None:
        folder, number = commands.folder, commands.number
        assert (commands.config.task.seed, commands.config.run.seed) == (0, number)
        self.ran.append(f"{number} {name}")
        write = getattr(self, f"_{name.replace(' ', '_')}")
        write(commands, folder, number)
        write_json(commands.note(name), {"digest": commands.digest(name)})
        commands.note(name).with_suffix(".begun").write_text(commands.digest(name))

    def _annotate(self, commands: Round, folder: Path, number: int) -> None:
        (folder / NEW).mkdir(parents=True)
        for name in FILES:
            write_records(folder / NEW / name, [record("a", f"{name} {number}")])

    def _reward_model(self, commands: Round, folder: Path, number: int) -> None:
        self._rates(folder, self.marks[number - 1][0])
        write_json(folder / "reward_model" / "gate.json", {"fit": True, "reasons": []})

    def _evaluate_reward_model(self, commands: Round, folder: Path, number: int) -> None:
        assert commands.config.critic.reward_model.folder is not None
        self._rates(folder, self.marks[int(commands.config.critic.reward_model.folder.parts[-3]) - 1][1])

    def _rates(self, folder: Path, f1: float) -> None:
        write_json(folder / "evaluation" / "reward_model.json", {"good_f1": f1, "poor_f1": f1})

    def _text2grad(self, commands: Round, folder: Path, number: int) -> None:
        run, settings = folder / "ppo" / "text2grad", commands.config
        place = folder / SFT / "policy" / "weights"
        start = place.read_text() if place.is_file() else settings.policy.model
        assert start in ("start", settings.policy.model), "the reference of PPO is the start of all rounds"
        state = run / CHECKPOINTS / "state"
        start = state.read_text() if state.is_file() else start
        model = settings.critic.reward_model.folder
        trained = f"{start}, {number} by {model.parts[-3] if model else number}"
        (run / "policy").mkdir(parents=True)
        (run / "policy" / "weights").write_text(trained)
        if "--offline" not in commands.words("text2grad"):
            assert settings.ppo.keep_state and settings.ppo.steps == STEPS * trained.count(",")
            state.parent.mkdir(exist_ok=True)
            state.write_text(trained)

    def _evaluate_before(self, commands: Round, folder: Path, number: int) -> None:
        self._score(commands, target_name(commands.words("evaluate before")[1]), self.scores[number - 1][0])

    def _evaluate_text2grad(self, commands: Round, folder: Path, number: int) -> None:
        self._score(commands, "text2grad", self.scores[number - 1][1])

    def _score(self, commands: Round, name: str, values: Scores) -> None:
        place = commands.folder / "evaluation" / measured_on(commands.config) / f"{name}{SCORES}"
        named = values if isinstance(values, dict) else {"p1": values}
        scores = {problem: {"pass": value, "rouge_l": value} for problem, value in named.items()}
        others = {problem: {"pass": 1 - value, "rouge_l": 1 - value} for problem, value in named.items()}
        write_json(place, {"greedy": others, "sampled": scores})


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Commands]:
    def given(*arguments: Any) -> Commands:
        commands = Commands(*arguments)
        monkeypatch.setattr(Round, "_run", lambda self, name: commands.run(self, name))
        return commands

    return given


def best_in(folder: Path) -> str:
    return (folder / "ppo" / NAME / "policy" / "weights").read_text()


def test_each_round_goes_on_from_the_one_before_and_has_all_records(
    tmp_path: Path, pretend: Callable[..., Commands]
) -> None:
    commands = pretend([(0.1, 0.3), (0.3, 0.5)])
    write_records(tmp_path / FILES[0], [record("z", "before")])
    found = run_loop(config_in(tmp_path), Plan(2))
    assert (found.start, found.best, found.best_round, found.measure) == (0.1, 0.5, 2, "pass")
    assert best_in(tmp_path) == "start, 1 by 1, 2 by 2"
    names = ("annotate", "reward model", "text2grad", "evaluate before", "evaluate text2grad")
    assert commands.ran[:5] == [f"1 {name}" for name in names]
    texts = [each.response for each in read_records(tmp_path / "rounds" / "2" / FILES[0])]
    assert texts == ["before", "feedback.jsonl 1", "feedback.jsonl 2"]
    assert [row["records"] for row in found.rounds] == [2, 3]


def test_the_first_round_that_falls_is_the_last(tmp_path: Path, pretend: Callable[..., Commands]) -> None:
    pretend([(0.1, 0.3), (0.3, 0.2), (0.3, 0.9)])
    found = run_loop(config_in(tmp_path), Plan(3))
    assert [row["kept"] for row in found.rounds] == [True, False]
    assert (found.best, found.best_round) == (0.3, 1) and best_in(tmp_path) == "start, 1 by 1"


def test_a_round_that_is_lower_within_chance_is_gone_on_from_and_not_the_best(
    tmp_path: Path, pretend: Callable[..., Commands]
) -> None:
    clearly = {"p1": 0.0, "p2": 0.2, "p3": 0.2}
    pretend(
        [(START, LOWER), (START, {"p1": 0.1, "p2": 0.6, "p3": 0.5}), (START, {**START, "p1": 0.1}), (START, LOWER)]
    )
    found = run_loop(config_in(tmp_path / "chance"), Plan(4))
    assert [row["kept"] for row in found.rounds] == [False, True, True, False]
    assert best_in(tmp_path / "chance") == "start, 1 by 1, 2 by 2, 3 by 3"
    low, high = found.rounds[0]["difference_interval"]
    assert low < -0.1 and high > 0
    pretend([({"p1": 0.1, "p2": 0.4, "p3": 0.5}, clearly), (START, START)])
    assert len(run_loop(config_in(tmp_path / "clear"), Plan(2)).rounds) == 1


def states_in(folder: Path) -> list[str]:
    return sorted(place.parts[-4] for place in folder.glob(f"rounds/*/ppo/text2grad/{CHECKPOINTS}"))


def test_the_last_and_the_best_round_keep_what_training_goes_on_from(
    tmp_path: Path, pretend: Callable[..., Commands]
) -> None:
    higher = {**START, "p1": 0.1}
    pretend([(START, higher), (higher, {**higher, "p1": 0.2}), (START, LOWER), (START, LOWER)])
    config = config_in(tmp_path)
    for count, states in ((1, ["1"]), (2, ["2"]), (3, ["2", "3"]), (4, ["2", "4"])):
        assert len(run_loop(config, Plan(count)).rounds) == count
        assert states_in(tmp_path) == states
    assert best_in(tmp_path) == "start, 1 by 1, 2 by 2"


def test_a_round_whose_settings_have_changed_begins_again_where_the_last_one_ended(
    tmp_path: Path, pretend: Callable[..., Commands]
) -> None:
    commands = pretend([(0.1, 0.3), (0.3, 0.5)])
    run_loop(config_in(tmp_path), Plan(1))
    run = tmp_path / "rounds" / "2" / "ppo" / "text2grad"
    (run / CHECKPOINTS).mkdir(parents=True)
    (run / CHECKPOINTS / "state").write_text("of other settings")
    assert run_loop(config_in(tmp_path), Plan(2)).best_round == 2 and commands.ran[-3] == "2 text2grad"
    assert best_in(tmp_path) == "start, 1 by 1, 2 by 2"


def test_a_round_without_the_state_of_its_training_is_one_line(
    tmp_path: Path, pretend: Callable[..., Commands]
) -> None:
    commands = pretend([(0.1, 0.3), (0.3, 0.5)])
    run_loop(config_in(tmp_path), Plan(1))
    count = len(commands.ran)
    shutil.rmtree(tmp_path / "rounds" / "1" / "ppo" / "text2grad" / CHECKPOINTS)
    with pytest.raises(UserError, match="round 1 kept no state of its training to go on from"):
        run_loop(config_in(tmp_path), Plan(2))
    assert len(commands.ran) == count, "nothing was spent"


def as_once_written(folder: Path) -> None:
    """Take the intervals out of the rounds that have ended."""
    for file in folder.glob("rounds/*/round.json"):
        row = json.loads(file.read_text())
        write_json(file, {name: value for name, value in row.items() if name != "difference_interval"})


def test_rounds_that_were_written_without_intervals_count(tmp_path: Path, pretend: Callable[..., Commands]) -> None:
    commands = pretend([(0.1, 0.3), (0.3, 0.5), (0.5, 0.2)])
    config = config_in(tmp_path)
    for count in (2, 3, 4):
        rounds = run_loop(config, Plan(count)).rounds
        assert len(rounds) == min(count, 3) and best_in(tmp_path) == "start, 1 by 1, 2 by 2"
        as_once_written(tmp_path)
    assert "(" not in next(table_of(run_loop(config, Plan(4)).rounds)) and len(commands.ran) == 17


def test_each_round_judges_other_prompts(tmp_path: Path, pretend: Callable[..., Commands]) -> None:
    pretend([])
    config = config_in(tmp_path, "--annotate.prompts=67", "--annotate.first=10")
    firsts = [commands_of(config, number, (), Plan(3)).config.annotate.first for number in (1, 2, 3)]
    assert firsts == [10, 77, 144]
    inbox = commands_of(config, 3, (), Plan(3, tmp_path)).config.annotate.first
    every = commands_of(config_in(tmp_path, "--annotate.prompts=null"), 3, (), Plan(3)).config.annotate.first
    assert (inbox, every) == (10, 0)


def test_reward_models_of_fewer_critiques_take_more_passes(tmp_path: Path) -> None:
    config = config_in(tmp_path, "--reward_model.training.epochs=2")

    def passes(plan: Plan, *numbers: int) -> list[float]:
        return [commands_of(config, each, (), plan).config.reward_model.training.epochs for each in numbers]

    assert passes(Plan(3), 1, 2, 3) == [6, 3, 2]
    assert passes(Plan(3, tmp_path), 1, 2) == [2, 2], "how many nights there will be is not known"
    unset = load_config(None, [f"--run.folder={tmp_path}", "--task.name=qa", "--policy.model=tiny"])
    assert not is_set(commands_of(unset, 1, (), Plan(3)).config, "reward_model.training.epochs"), "it is derived"


def test_the_reward_model_of_a_round_that_was_not_kept_is_still_the_last(
    tmp_path: Path, pretend: Callable[..., Commands]
) -> None:
    pretend([(START, LOWER), (START, {**START, "p1": 0.1})], [(0.9, 0.9), (0.2, 0.2)])
    found = run_loop(config_in(tmp_path), Plan(2))
    assert [row["kept"] for row in found.rounds] == [False, True]
    assert best_in(tmp_path) == "start, 1 by 1, 2 by 1"


def test_nothing_is_done_twice_and_more_rounds_go_on(tmp_path: Path, pretend: Callable[..., Commands]) -> None:
    commands = pretend([(0.1, 0.3), (0.3, 0.5)])
    config = config_in(tmp_path)
    first = run_loop(config, Plan(1))
    count = len(commands.ran)
    assert run_loop(config, Plan(1)) == first and len(commands.ran) == count
    (tmp_path / "rounds" / "1" / "round.json").unlink()  # as if killed just before the end
    assert run_loop(config, Plan(1)) == first and len(commands.ran) == count
    assert [row["round"] for row in run_loop(config, Plan(2)).rounds] == [1, 2]


def test_a_reward_model_that_marks_worse_than_the_last_is_kept_back(
    tmp_path: Path, pretend: Callable[..., Commands], capsys: pytest.CaptureFixture[str]
) -> None:
    pretend([(0.1, 0.3), (0.3, 0.5), (0.5, 0.6)], [(0.6, 0.7), (0.4, 0.4), (0.65, 0.65)])
    found = run_loop(config_in(tmp_path), Plan(3))
    assert best_in(tmp_path) == "start, 1 by 1, 2 by 1, 3 by 1"
    assert "round 2: the new reward model marks held-out answers worse (0.400) than the one before (0.700)" in (
        capsys.readouterr().err
    )
    assert [row["reward_model"].split("/")[-3] for row in found.rounds] == ["1", "1", "1"]


def test_an_inbox_gives_one_round_of_what_is_new(
    tmp_path: Path, pretend: Callable[..., Commands], capsys: pytest.CaptureFixture[str]
) -> None:
    commands = pretend([(0.1, 0.3), (0.3, 0.2), (0.3, 0.4)])
    inbox, run = tmp_path / "inbox", tmp_path / "run"
    inbox.mkdir()
    config = config_in(run, "--task.name=qa", "--task.data=imported")
    config = config.model_copy(update={"task": config.task.model_copy(update={"heldout_share": 0.5})})
    plan = Plan(3, inbox, offline=True, measure="rouge_l")
    assert run_loop(config, plan).rounds == [] and f"nothing new in {inbox}" in capsys.readouterr().err
    for night, rounds in ((1, 1), (1, 1), (2, 2), (3, 3)):
        rows = [{"prompt": f"q{night} {n}", "response": "r", "critique": "c", "corrected": "s"} for n in range(9)]
        (inbox / f"{night}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        assert len(run_loop(config, plan).rounds) == rounds
        as_once_written(run)  # a night with an earlier version
    assert "annotate" not in " ".join(commands.ran) and "reward model" not in " ".join(commands.ran)
    assert len(read_records(run / "rounds" / "3" / FILES[0])) == 27
    # The second night was worse than the first, and the third learns from all records from the start once more.
    assert best_in(run) == "start, 3 by 3"
    assert (run / "rounds" / "3" / "ppo" / BEFORE / "policy" / "weights").read_text() == "start, 1 by 1"


@pytest.mark.parametrize("model", ["org/base", "smollm2", "models/some.gguf"])
@pytest.mark.parametrize("offline", [False, True])
def test_rounds_start_from_a_model_that_is_no_folder(
    model: str, offline: bool, tmp_path: Path, pretend: Callable[..., Commands]
) -> None:
    pretend([(0.1, 0.3), (0.3, 0.5)])
    config = load_config([find_config("demo")], [f"--run.folder={tmp_path}", f"--policy.model={model}"])
    write_records(tmp_path / FILES[0], [record("z", "before")])
    found = run_loop(config, Plan(2, offline=offline))
    assert (found.start, found.best) == (0.1, 0.5) and found.out
    assert best_in(tmp_path) == f"{model}, 2 by 2" if offline else f"{model}, 1 by 1, 2 by 2"
    first = tmp_path / "rounds" / "1"
    assert not (first / SFT / "policy").is_symlink() and not (first / "ppo" / BEFORE / "policy").is_symlink()


def test_the_reward_model_is_handed_a_model_and_nothing_else_of_the_policy(tmp_path: Path) -> None:
    words = ("--policy.device=cpu", "--policy.value_head=separate", "--generation.max_turns=3")
    made = commands_of(config_in(tmp_path, *words), 1, (), Plan(1))
    assert learner_settings(made.config).model == str(tmp_path / SFT / "policy")
    command = made.words("reward model")
    read = load_config([Path(command[command.index("--config") + 1])])
    assert read.generation.max_turns == 3 and not hasattr(read.reward_model.generation, "max_turns")
    assert type(made.config.reward_model.policy) is type(read.reward_model.policy) is ModelSettings


QA = ("--task.name=qa", "--task.data=imported", "--task.heldout_share=0.5")


def remarks(count: int, **more: Any) -> str:
    rows = [{"prompt": f"q {n}", "response": "r", "critique": "c", "corrected": "s", **more} for n in range(count)]
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def test_rounds_on_the_prompts_of_what_was_imported(tmp_path: Path, pretend: Callable[..., Commands]) -> None:
    commands = pretend([(0.1, 0.3)])
    (tmp_path / "mine.jsonl").write_text(remarks(9))
    config = config_in(tmp_path / "run", *QA)
    run_import(config, tmp_path / "mine.jsonl", "auto", tmp_path / "run" / FILES[0])
    found = run_loop(config, Plan(1, measure="rouge_l"))
    assert found.best == 0.3 and commands.ran[:2] == ["1 annotate", "1 reward model"]


def test_an_inbox_teaches_a_reward_model_too(tmp_path: Path, pretend: Callable[..., Commands]) -> None:
    commands = pretend([(0.1, 0.3)])
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    (inbox / "1.jsonl").write_text(remarks(9))
    run_loop(config_in(tmp_path / "run", *QA), Plan(1, inbox, measure="rouge_l"))
    assert commands.ran[:2] == ["1 reward model", "1 text2grad"]


def test_after_a_fall_an_inbox_goes_on_from_the_best(tmp_path: Path, pretend: Callable[..., Commands]) -> None:
    pretend([(0.1, 0.3), (0.3, 0.2), (0.3, 0.4)])
    config, inbox = config_in(tmp_path / "run", *QA), tmp_path / "inbox"
    inbox.mkdir()
    for night in (1, 2, 3):
        (inbox / f"{night}.jsonl").write_text(remarks(6, response=f"r{night}"))
        run_loop(config, Plan(1, inbox, measure="rouge_l"))
    assert best_in(tmp_path / "run") == "start, 1 by 1, 3 by 3"


def test_a_file_that_has_grown_gives_what_is_new_in_it(
    tmp_path: Path, pretend: Callable[..., Commands], capsys: pytest.CaptureFixture[str]
) -> None:
    pretend([(0.1, 0.3), (0.3, 0.4), (0.4, 0.4)])
    inbox, run = tmp_path / "inbox", tmp_path / "run"
    inbox.mkdir()
    config, plan = config_in(run, *QA), Plan(1, inbox, offline=True, measure="rouge_l")

    def night(text: str) -> tuple[int, int, int]:
        (inbox / "all.jsonl").write_text(text)
        rounds = run_loop(config, plan).rounds
        return len(rounds), rounds[-1]["new_records"], rounds[-1]["records"]

    assert night(remarks(6)) == (1, 6, 6)
    assert night(remarks(9)) == (2, 3, 9)
    capsys.readouterr()
    assert night(remarks(9) + "\n") == (2, 3, 9) and f"nothing new in {inbox}" in capsys.readouterr().err
    edited = remarks(9).replace('"c"', '"better"', 1)
    assert night(edited) == (3, 1, 9)
    said = [each.critique for each in read_records(run / "rounds" / "3" / FILES[0])]
    assert said == ["better", *["c"] * 8]


@pytest.mark.parametrize(
    "row, words, message",
    [
        ({"prompt": "elsewhere", "response": "r", "critique": "c"}, (), "1 of 1 records are about other prompts"),
        ({"prompt": 3}, (), "3.jsonl"),
    ],
)
def test_an_inbox_that_cannot_be_read_is_one_line_and_nothing_is_taken(
    row: dict[str, Any], words: tuple[str, ...], message: str, tmp_path: Path, pretend: Callable[..., Commands]
) -> None:
    commands = pretend([])
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    (inbox / "3.jsonl").write_text(f"{json.dumps(row)}\n")
    with pytest.raises(UserError, match=message):
        run_loop(config_in(tmp_path / "run", *words), Plan(1, inbox))
    assert not commands.ran and not list((tmp_path / "run").glob("rounds/*/new"))


@pytest.mark.parametrize(
    "words, plan, message",
    [
        (("--critic.kind=program",), Plan(1), "nothing to refresh"),
        ((), Plan(1, Path("nowhere")), "no folder nowhere"),
    ],
)
def test_what_cannot_begin_is_one_line(words: tuple[str, ...], plan: Plan, message: str, tmp_path: Path) -> None:
    with pytest.raises((UserError, UsageError), match=message):
        run_loop(config_in(tmp_path, *words), plan)


def test_rounds_need_a_policy_to_start_from(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no policy in"):
        run_loop(load_config([find_config("demo")], [f"--run.folder={tmp_path}"]), Plan(1))
