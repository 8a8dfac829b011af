"""Comparing methods: order of commands, resumption, and the figures of the table."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from text2grad.config import Config, find_config, load_config
from text2grad.errors import EXIT_SOME_RECORDS_FAILED, UsageError, UserError
from text2grad.eval.metrics import mean_with_interval
from text2grad.settings import is_set, value_at, with_values
from text2grad.tasks.base import TaskSettings
from text2grad_lab import compare
from text2grad_lab.compare import curves
from text2grad_lab.compare import figures as comparison
from text2grad_lab.compare import seeds as running
from text2grad_lab.compare.figures import over_problems
from text2grad_lab.compare.methods import METHODS, SHARED, TRAINED, methods_of, works_of
from text2grad_lab.compare.seeds import Seed, run_parallel
from text2grad_lab.compare.tuning import Extent, tune_rates, tuning_seeds


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return load_config([find_config("demo")], [f"--run.folder={tmp_path}"])


def test_every_method_has_its_commands_in_order(config: Config) -> None:
    def works(*names: str) -> list[str]:
        return list(works_of(methods_of(names, config)))

    assert set(METHODS) == {"base", "sft", "reflection", *TRAINED}
    assert works("sft") == ["sft", "evaluate sft"]
    assert works("reflection") == ["sft", "annotate", "reward model", "evaluate reflection"]
    for name in TRAINED:
        assert works(name)[0] == "sft" and works(name)[-2:] == [name, f"evaluate {name}"]
    before = {name: works(name)[-3] for name in ("text2grad", "scalar_rm", "prm", "dense")}
    assert list(before.values()) == ["reward model", "scalar model", "step model", "token model"]
    assert works("offline")[:-2] == ["sft", "annotate"], "no reward model"
    names = [name for name in METHODS if name != "base"]
    every = works_of(methods_of(names, config))
    order = list(every)
    assert len(order) == len(TRAINED) + len(SHARED) + len(names)
    for name, work in every.items():
        assert all(order.index(earlier) < order.index(name) for earlier in work.after)


def test_methods_learn_from_imported_feedback(tmp_path: Path, commands: list[list[str]]) -> None:
    config = load_config([find_config("human_qa")], [f"--run.folder={tmp_path}"])
    (seed,) = compare.seeds_of(config, methods_of(["sft", "dpo", "text2grad"], config), [3])
    run_parallel([seed], 1)
    feedback = str(tmp_path / "feedback.jsonl")
    assert [words[0] for words in commands].count("annotate") == 0
    assert next(words for words in commands if words[0] == "import")[1] == feedback
    for words in commands:
        if words[0] != "export":
            task = load_config([Path(words[words.index("--config") + 1])]).task
            assert (task.data, task.seed) == (feedback, 3)
    assert list(seed.works).index("import") < list(seed.works).index("reward model")
    with pytest.raises(UserError, match=r"no feedback in .*text2grad import FILE"):
        compare.run_compare(config, ["sft"], Extent.of(0, 1), 1)


def test_a_program_critic_needs_no_reward_model(config: Config) -> None:
    tested = config.model_copy(update={"critic": config.critic.model_copy(update={"kind": "program"})})
    assert list(works_of(methods_of(["text2grad"], tested))) == ["sft", "text2grad", "evaluate text2grad"]
    with pytest.raises(UsageError, match="the critic program knows the reference or the tests"):
        methods_of(["reflection"], tested)


def test_a_recipe_file_is_a_method(config: Config, tmp_path: Path, commands: list[list[str]]) -> None:
    (tmp_path / "far.yaml").write_text("critic: {kind: program}\nppo: {gamma: 0.5}\n", encoding="utf-8")
    methods = methods_of([str(tmp_path / "far.yaml"), "sft"], config)
    assert list(methods) == ["sft", "far"]
    (seed,) = compare.seeds_of(config, methods, [0])
    run_parallel([seed], 1)
    assert [words[0] for words in commands] == ["sft", "train", "evaluate", "evaluate"]
    words = next(words for words in commands if words[0] == "train")
    assert words[2] == "far" and seed.settings(seed.works["far"]).ppo.gamma == 0.5
    (tmp_path / "far.yaml").write_text("ppo: {gamma: 0.5, rollouts: 7, samples_per_prompt: 2}\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"far: .*rollouts 7"):
        methods_of([str(tmp_path / "far.yaml")], config)
    with pytest.raises(UserError, match=r"nothing\.yaml"):
        methods_of(["nothing.yaml"], config)


def test_a_method_may_have_its_own_settings(config: Config, commands: list[list[str]]) -> None:
    names = ["text2grad", "scalar+ppo.gamma=0.5+ppo.lr=1e-3", "dpo+extra.dpo.beta=0.2"]
    (seed,) = compare.seeds_of(config, methods_of(names, config), [0])
    run, dpo = "scalar-ppo.gamma-0.5-ppo.lr-1e-3", "dpo-extra.dpo.beta-0.2"
    assert {run, dpo, f"evaluate {run}"} < set(seed.works)
    changed, plain = (seed.settings(seed.works[name]) for name in (run, "text2grad"))
    assert (changed.credit.scheme, changed.ppo.gamma, changed.ppo.lr) == ("last_token", 0.5, 1e-3)
    assert (plain.ppo.gamma, plain.ppo.lr) == (config.ppo.gamma, config.ppo.lr)
    assert seed.settings(seed.works[dpo]).extra["dpo"]["beta"] == 0.2
    run_parallel([seed], 1)
    assert ["train", "--name", run] in [words[:3] for words in commands]
    extent = Extent.of(0, 1, tries=2)
    (tuning,) = tuning_seeds(config, methods_of(names[1:2], config), extent)
    assert tuning.settings(tuning.works[f"{run}_x2"]).ppo.lr == 2e-3


def curve(*rates: float) -> list[dict[str, float]]:
    return [{"rollouts": 100.0 * n, "sampled": rate} for n, rate in enumerate(rates, start=1)]


@pytest.mark.parametrize(
    ("ours", "share"),
    [
        ([curve(0.6, 0.8), curve(0.5, 0.7)], (75 / 200 + 150 / 200) / 2),  # interpolated
        ([curve(0.4, 0.3), curve(0.9)], None),  # never reached on one seed
    ],
)
def test_the_share_of_scalar_ppos_rollouts(ours: list[Any], share: float | None) -> None:
    by_method = {"scalar": [curve(0.3, 0.5), curve(0.5, 0.6)], "text2grad": ours}
    expected = share if share is None else pytest.approx(share)
    assert curves.rollout_shares(by_method, [0.2, 0.4]) == {"scalar": 1.0, "text2grad": expected}
    assert curves.rollout_shares({"text2grad": ours}, [0.2, 0.4]) == {}
    drawn = curves.draw_curves(by_method, [0.2, 0.4], "held-out pass@1")
    bands = drawn.count("fill-opacity")
    assert drawn.count("<path") - drawn.count("#e5e5e5") - bands == 6 and ">text2grad" in drawn and bands == 2


def test_the_band_is_one_deviation_over_the_seeds() -> None:
    band, *_ = curves._lines("text2grad", [curve(0.2), curve(0.4)], [0.1, 0.1])
    assert isinstance(band, curves.Band)
    assert band.points == ((0.0, 0.1), (100.0, pytest.approx(0.4)), (100.0, pytest.approx(0.2)), (0.0, 0.1))
    assert not any(isinstance(line, curves.Band) for line in curves._lines("one", [curve(0.2)], [0.1]))


@pytest.mark.parametrize(
    ("names", "changes", "problem"),
    [
        (["sft", "dop"], {}, "no method 'dop'"),
        (["sft", "mine/my method.yaml"], {}, "'my method' is not a valid run name"),
        ([], {}, "no methods to compare"),
        (["base"], {}, "no base"),
        (["grpo"], {"rollouts": 12}, "grpo: .*rollouts 12 is not a multiple"),
        (["sft+ppo.gamma=1"], {}, "sft trains nothing"),
        (["grpo+ppo.gama=1"], {}, "grpo-ppo.gama-1: unknown setting 'ppo.gama'"),
    ],
)
def test_invalid_methods_are_refused(
    config: Config, names: list[str], changes: dict[str, Any], problem: str
) -> None:
    ppo = config.ppo.model_copy(update=changes)
    with pytest.raises(UsageError, match=problem):
        methods_of(names, config.model_copy(update={"ppo": ppo}))


def test_answers_without_the_measure_are_named(config: Config) -> None:
    seed = seed_of(config, 0, "sft")
    place = seed.folder / "evaluation" / "demo" / "sft.scores.json"
    place.parent.mkdir(parents=True)
    place.write_text(json.dumps({"greedy": {"p": {}}, "sampled": {"p": {"named": 1.0}}}), encoding="utf-8")
    with pytest.raises(UserError, match="no greedy answer of sft in seed-0 has the measure 'named'"):
        comparison.scores_of(seed, "sft", "named")


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Command lines that a fake runner received; `annotate` fails on some records, `offline`
    fails."""
    calls: list[list[str]] = []
    lock = threading.Lock()

    def run(command: list[str], log: Path) -> tuple[int, float]:
        with lock:
            calls.append(list(command[3:]))
        log.write_text("error: out of luck\n", encoding="utf-8")
        if "annotate" in command:
            return EXIT_SOME_RECORDS_FAILED, 10.0
        return (1 if "offline" in command else 0), 10.0

    monkeypatch.setattr(running, "run_command", run)
    return calls


def seed_of(config: Config, number: int, *methods: str) -> Seed:
    return Seed(config, number, config.run.folder / f"seed-{number}", works_of(methods_of(methods, config)))


def test_finished_commands_are_skipped_and_changed_settings_rerun(
    config: Config, commands: list[list[str]], tmp_path: Path
) -> None:
    run_parallel([seed_of(config, 3, "sft", "scalar")], 2)
    run = [words[0] for words in commands]
    assert sorted(run) == ["annotate", "evaluate", "evaluate", "sft", "train", "train-reward"] and run[0] == "sft"
    assert all("--restart" not in words for words in commands)
    commands.clear()
    run_parallel([seed_of(config, 3, "sft", "scalar")], 2)
    assert not commands
    slower = config.model_copy(update={"ppo": config.ppo.model_copy(update={"lr": 1e-9})})
    run_parallel([seed_of(slower, 3, "sft", "scalar")], 1)
    assert sorted(words[0] for words in commands) == ["evaluate", "train"], "independent work is not repeated"
    assert "--restart" in next(words for words in commands if words[0] == "train")


def test_partial_failures_are_used_and_reported(
    config: Config, commands: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    seed = seed_of(config, 3, "scalar")
    run_parallel([seed], 1)
    records = {name: seed.done(name) for name in seed.works}
    assert all(records.values())
    assert [name for name, record in records.items() if record and record["some_records_failed"]] == ["annotate"]
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "failed" in line]
    assert "annotate" in line and str(seed.record_file("annotate").with_suffix(".log")) in line


def test_changes_invalidate_only_dependent_commands(config: Config) -> None:
    def digests(**changes: Any) -> dict[str, str]:
        seed = seed_of(config.model_copy(update=changes), 3, "scalar", "scalar_rm", "dpo")
        return {name: seed.digest(name) for name in seed.works}

    before = digests()
    training = config.reward_model.training.model_copy(update={"lr": 3.0})
    model = config.reward_model.model_copy(update={"training": training})
    after = digests(reward_model=model)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"reward model", "scalar", "evaluate scalar"}
    assert not {
        name for name in before if before[name] == digests(sft=config.sft.model_copy(update={"lr": 1.0}))[name]
    }


def test_rates_are_tuned_equally_on_a_separate_seed(
    config: Config, commands: list[list[str]], tmp_path: Path
) -> None:
    folder = tmp_path / "tuning-100" / "evaluation" / "demo"
    folder.mkdir(parents=True)
    reached = {"scalar": 0.5, "scalar_x2": 0.75, "scalar_x0p5": 0.7, "rejection": 0.6, "rejection_x2": 0.7}
    for name, value in {**reached, "rejection_x0p5": 0.1}.items():
        best = {"best_temperature": 0.8} if name == "rejection" else {}  # decides if it exists
        ways = {"greedy": value, "sampled": value, **best}
        scores = {way: {"p": {"pass": rate}} for way, rate in ways.items()}
        (folder / f"{name}.scores.json").write_text(json.dumps(scores), encoding="utf-8")
    extent = Extent.of(0, 3, tries=3)
    factors = tune_rates(
        config, methods_of(["sft", "reflection", "scalar", "rejection"], config), extent, "pass", 2
    )
    assert factors == {"scalar": 2.0, "rejection": 1.0}
    trained = {words[words.index("--name") + 1]: words for words in commands if "--name" in words}
    assert trained.keys() == {"scalar", "scalar_x2", "scalar_x0p5", "rejection", "rejection_x2", "rejection_x0p5"}
    configs = {name: load_config([Path(words[words.index("--config") + 1])]) for name, words in trained.items()}
    assert (
        configs["scalar_x2"].ppo.lr == 2 * config.ppo.lr and configs["rejection_x0p5"].sft.lr == config.sft.lr / 2
    )
    assert configs["scalar_x2"].run.seed == configs["scalar_x2"].task.seed == 100
    assert json.loads((tmp_path / "tuning.json").read_text())["methods"]["scalar"]["tried"]["2"] == 0.75
    scalar = methods_of(["scalar"], config)
    (last,) = compare.seeds_of(config, scalar, [0], factors)
    assert last.settings(last.works["scalar"]).ppo.lr == 2 * config.ppo.lr
    assert tune_rates(config, scalar, Extent.of(0, 3), "pass", 2) == {"scalar": 1.0}
    with pytest.raises(UsageError, match="both tuned on and reported"):
        tune_rates(config, scalar, Extent((0, 100), (1.0, 2.0), (100,)), "pass", 2)


def test_problems_that_all_seeds_share_are_not_tuned_on(config: Config, tmp_path: Path) -> None:
    rows = [{"id": str(n), "prompt": f"say {n}", "response": f"ok {n}"} for n in range(8)]
    for name, part in (("train", rows[:6]), ("heldout", rows[6:])):
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in part), encoding="utf-8")
    data = {"name": "qa", "data": str(tmp_path / "train.jsonl")}
    split, fixed = data, data | {"heldout_data": str(tmp_path / "heldout.jsonl")}
    methods, extent = methods_of(["scalar"], config), Extent.of(0, 1, tries=2)
    assert tuning_seeds(with_values(config, {"task": TaskSettings(**split)}), methods, extent)
    with pytest.raises(UsageError, match="same for every seed"):
        tuning_seeds(with_values(config, {"task": TaskSettings(**fixed)}), methods, extent)


def test_dpos_default_rate_counts_as_unset() -> None:
    words = ["--task.name", "demo", "--policy.model", "smollm2", "--extra.dpo.training.epochs", "2"]
    bare = load_config(None, words)
    with pytest.raises(UsageError, match=r"extra\.dpo\.training\.lr is not set"):
        tuning_seeds(bare, methods_of(["dpo"], bare), Extent.of(0, 1, tries=2))


@pytest.mark.parametrize(
    ("method", "section"), [("dpo", "extra.dpo.training"), ("offline", "offline"), ("text2grad", "ppo")]
)
def test_tuning_sets_the_rate_and_keeps_derived_settings_unset(method: str, section: str, tmp_path: Path) -> None:
    words = ["--task.name", "demo", "--policy.model", "smollm2", "--run.folder", str(tmp_path)]
    bare = load_config(None, [*words, f"--{section}.lr", "0.0001"])
    (seed,) = tuning_seeds(bare, methods_of([method], bare), Extent.of(0, 1, tries=3))
    for name, factor in ((method, 1.0), (f"{method}_x2", 2.0), (f"{method}_x0p5", 0.5)):
        trained = seed.words(name)
        trial = load_config([Path(trained[trained.index("--config") + 1])])
        assert is_set(trial, f"{section}.lr") and value_at(trial, f"{section}.lr") == pytest.approx(factor * 1e-4)
        assert not is_set(trial, f"{section}.epochs") and not is_set(trial, f"{section}.micro_batch_size")


def test_a_recipe_overrides_the_settings_of_its_run(
    config: Config, commands: list[list[str]], tmp_path: Path
) -> None:
    run_parallel([seed_of(config, 3, "scalar")], 1)
    words = next(words for words in commands if words[0] == "train")
    train_config = load_config([Path(words[words.index("--config") + 1])], [])
    assert train_config.credit.scheme == "last_token" and train_config.run.seed == train_config.task.seed == 3
    assert config.credit.scheme == "spans"
    assert train_config.ppo.max_kl is None and config.ppo.max_kl is not None, "diverging runs are measured too"
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("ppo: {max_kl: 1.0, max_failed: 0.5}\n", encoding="utf-8")
    seed = seed_of(config, 4, str(recipe))
    ppo = seed.settings(seed.works["mine"]).ppo
    assert (ppo.max_kl, ppo.max_failed) == (None, 1.0), "the limits of a recipe are ignored"


def test_an_unfit_reward_model_ends_the_comparison_before_training(
    config: Config, commands: list[list[str]]
) -> None:
    alone = {"fit": True, "reasons": []}
    verdict = {"fit": False, "reasons": ["its verdicts may be chance"], "spans_alone": alone}
    names = ("scalar", "offline", "text2grad")
    for number, gate in ((3, {"fit": True, "reasons": []}), (4, verdict)):
        place = config.run.folder / f"seed-{number}" / "reward_model" / "gate.json"
        place.parent.mkdir(parents=True)
        place.write_text(json.dumps(gate), encoding="utf-8")
    seeds = [seed_of(config, number, *names) for number in (3, 4)]
    for _ in range(2):  # also if the reward model is finished
        with pytest.raises(
            UserError, match=r"seed-4: scalar, text2grad: the reward model is not fit.*remove scalar"
        ):
            run_parallel(seeds, 1)
    assert sorted({words[0] for words in commands}) == ["annotate", "sft", "train-reward"]
    done = len(commands)
    model = config.critic.reward_model.model_copy(update={"gate": False})
    opened = config.model_copy(update={"critic": config.critic.model_copy(update={"reward_model": model})})
    with pytest.raises(UserError, match="offline failed"):
        run_parallel([seed_of(opened, number, *names) for number in (3, 4)], 1)
    assert {words[0] for words in commands[done:]} == {"train"}, "the gate invalidates no finished work"


def test_the_held_out_curve_of_each_seed(config: Config) -> None:
    seed = seed_of(config, 0, "sft", "scalar")
    place = seed.folder / "ppo" / "scalar" / "metrics.jsonl"
    place.parent.mkdir(parents=True)
    plain = {"step": 0, "seconds_generate": 1.0, "seconds_update": 2.0, "seconds_heldout": 50.0}
    rows = [plain, plain | {"heldout_greedy_pass": 0.5, "heldout_sampled_pass": 0.25}]
    place.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    point = {"rollouts": 2.0 * config.ppo.rollouts, "seconds": 6.0, "greedy": 0.5, "sampled": 0.25}
    by_method = curves.curves_of(methods_of(["sft", "scalar"], config), [seed], "pass")
    assert by_method == {"scalar": [[point]]}


def test_interrupted_commands_resume_unless_settings_changed(config: Config, commands: list[list[str]]) -> None:
    seed = seed_of(config, 3, "sft", "offline")
    for _ in range(2):
        with pytest.raises(UserError, match="offline failed: out of luck"):
            run_parallel([seed], 1)
        assert seed.done("annotate") and not seed.done("offline")
    other = config.model_copy(update={"offline": config.offline.model_copy(update={"lr": 1.0})})
    with pytest.raises(UserError, match="offline failed"):
        run_parallel([seed_of(other, 3, "sft", "offline")], 1)
    tried = ["--restart" in words for words in commands if "offline" in words]
    assert tried == [False, False, True]


def test_differences_are_paired_by_problem_and_seed() -> None:
    scores = [{"sampled": {"a": 1.0, "b": 0.0}}, {"sampled": {"a": 0.5, "c": 1.0}}]
    baseline = [{"sampled": {"a": 0.5, "b": 0.5}}, {"sampled": {"a": 0.5, "c": 0.0}}]
    assert over_problems(scores, "sampled") == [0.75, 0.0, 1.0]
    assert over_problems(scores, "sampled", baseline) == [0.25, -0.5, 1.0]
    assert mean_with_interval(over_problems(scores, "sampled", scores)) == (0.0, 0.0, 0.0)


def test_the_rows_of_the_table(config: Config, commands: list[list[str]], tmp_path: Path) -> None:
    rates = {"sft": (0.5, 0.25), "text2grad": (0.75, 1.0)}
    seeds = [seed_of(config, number, *rates) for number in (0, 1)]
    run_parallel(seeds, 1)
    for number, seed in enumerate(seeds):
        for name, values in rates.items():
            scores = {way: {"p": {"pass": values[number]}, "q": {"pass": 0.0}} for way in ("greedy", "sampled")}
            place = seed.folder / "evaluation" / "demo" / f"{name}.scores.json"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(json.dumps(scores), encoding="utf-8")
        (seed.folder / "feedback.jsonl").write_text("{}\n" * 5, encoding="utf-8")
        run = seed.folder / "ppo" / "text2grad"
        run.mkdir(parents=True)
        (run / "metrics.jsonl").write_text(
            '{"step": 0, "response_length": 10.0, "critic_tokens": 7.0}\n' * 3, encoding="utf-8"
        )
        (seed.folder / "sft").mkdir()
        (seed.folder / "sft" / "metrics.jsonl").write_text('{"step": 0, "loss": 1.0}\n' * 9, encoding="utf-8")
    methods = methods_of(list(rates), config)
    rows = comparison.rows_of(methods, seeds, "pass")
    assert rows["sft"]["seeds"] == [0.25, 0.125] and rows["sft"]["metric"] == 0.1875
    assert rows["sft"]["difference"] == pytest.approx(-0.25) and "difference" not in rows["text2grad"]
    batch = config.ppo.rollouts
    assert (rows["text2grad"]["rollouts"], rows["text2grad"]["sampled_tokens"]) == (3 * batch, 30 * batch)
    assert (rows["text2grad"]["critic_tokens"], rows["sft"]["critic_tokens"]) == (21, 0)
    assert (rows["text2grad"]["optimizer_steps"], rows["sft"]["optimizer_steps"]) == (3 * 4 * 2, 9)
    assert (rows["sft"]["shared_answers"], rows["text2grad"]["shared_answers"]) == (0, 5)
    assert rows["sft"]["rollouts"] == 0 and rows["text2grad"]["peak_mb"] == 10.0
    assert list(comparison.collapsed(methods, seeds, "pass")) == []
    table = comparison.table_of({"methods": rows}, "held-out pass@1", 2)
    assert "| SFT | 0.188 |" in table and "-0.250 (-0.500 to +0.000) | 0 | 9 | 0 | 0 |" in table


def test_the_plan_counts_the_remaining_commands(config: Config, commands: list[list[str]], tmp_path: Path) -> None:
    extent = Extent.of(config.run.seed, 1)
    before = compare.plan_of(config, ["sft", "scalar"], extent)
    assert before["rollouts"] == config.ppo.steps * config.ppo.rollouts
    assert set(map(tuple, (row.values() for row in before["works"].values()))) == {(1, None)}
    run_parallel(compare.seeds_of(config, methods_of(["sft", "scalar"], config), extent.seeds), 1)
    record_file = tmp_path / "seed-0" / "done" / "scalar.json"
    record_file.write_text(json.dumps({**json.loads(record_file.read_text()), "seconds": 30.0}), encoding="utf-8")
    after = compare.plan_of(config, ["sft", "scalar", "grpo"], extent)["works"]
    assert {name for name, row in after.items() if row["left"]} == {"grpo", "evaluate grpo"}
    assert (after["scalar"]["seconds"], after["grpo"]["seconds"]) == (30.0, None)


def test_reflections_cost_is_counted_while_answering(config: Config) -> None:
    seed = seed_of(config, 0, "reflection")
    place = seed.folder / "evaluation" / "demo" / "sft_reflect.json"
    place.parent.mkdir(parents=True)
    tokens = {
        "policy_output_tokens": 5,
        "policy_input_tokens": 2,
        "critic_input_tokens": 30,
        "critic_output_tokens": 3,
    }
    place.write_text(json.dumps(tokens), encoding="utf-8")
    (seed.folder / "feedback.jsonl").write_text("{}\n", encoding="utf-8")
    cost = comparison.cost_of("reflection", [seed])
    assert (cost["rollouts"], cost["sampled_tokens"], cost["critic_tokens"]) == (0, 7, 33)


def test_signs_warn_if_text2grad_is_below_scalar_ppo() -> None:
    def row(low: float, high: float) -> dict[str, object]:
        return {"difference": (low + high) / 2, "difference_interval": [low, high]}

    rows = {"sft": row(0.1, 0.2), "scalar": row(0.1, 0.3), "scalar_rm": row(-0.1, 0.3), "text2grad": {}}
    assert len(list(comparison.signs_of(rows))) == 1
    assert list(comparison.signs_of({"scalar": {}})) == []


# ---- sentences


@pytest.mark.parametrize("name", ["text2grad", "scalar"])
def test_policies_that_only_warm_up_are_refused(name: str) -> None:
    warming = ["--ppo.advantage", "gae", "--ppo.steps", "4", "--ppo.value_warmup", "5"]
    config = load_config(find_config("demo"), warming)
    with pytest.raises(UsageError, match=rf"{name}: all ppo\.steps \(4\) would be warm-up"):
        methods_of(["sft", name], config)
    assert methods_of(["sft", "dpo"], config)
    without = load_config(find_config("demo"), ["--ppo.steps", "4", "--ppo.value_warmup", "5"])
    assert list(methods_of([name], without)) == [name], "no value function, no warm-up"
