"""`evaluate`: a policy on held-out prompts."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from text2grad.align import TokenTable
from text2grad.config import Config
from text2grad.critics.program import extract_program, wanted_names
from text2grad.durable.state import seed_everything
from text2grad.errors import UserError
from text2grad.eval.code import judge_samples, passed_or_none, reference_program, sample_summary
from text2grad.eval.metrics import mean
from text2grad.eval.rewards import reward_report
from text2grad.feedback import Critic, Example, from_json, to_json, write_jsonl
from text2grad.policy.load import load_policy
from text2grad.policy.model import Policy
from text2grad.sandbox.results import Verdict
from text2grad.sandbox.runner import Runner
from text2grad.stages.critics import judge_of, runner_of
from text2grad.stages.folder import measured_on, policy_name, prepare, task_of, write_json
from text2grad.stages.reward_model import evaluate_reward_model
from text2grad.stages.sampling import sample
from text2grad.tasks.base import Task, load_task

ANSWERS = ".answers.json"
PATIENCE = 5
TITLES = {"sft": "SFT", "scalar_ppo": "scalar PPO"}

Measure = Callable[[Sequence[Example], Sequence[str]], list[dict[str, Any]]]
"""Answers -> of each its `scores`; of programs that were run `outcome` and `tier` too."""


def run_evaluate(config: Config, target: str, which: str) -> dict[str, Any]:
    """Measure a policy (a name of this run, a folder, or a hub name) or the reward model on held-out prompts."""
    folder = prepare(config)
    if which == "reward-model":
        return evaluate_reward_model(config)
    task = task_of(config)
    settings = config.policy.model_copy(update={"model": policy_name(config, target), "lora": None})
    heldout = task.examples("heldout")[: config.evaluate.limit]
    if not heldout:
        raise UserError("no held-out prompts to evaluate on", "raise task.heldout_share")
    policy = load_policy(settings)
    critic = judge_of(config)
    with runner_of(config) as runner:
        measured = evaluate_policy(policy, heldout, config, measure_with(task, runner), critic)
    name = target if target.isidentifier() else Path(target).name
    on = measured_on(config)
    write_json(folder / "evaluation" / on / f"{name}.json", measured["summary"])
    write_json(folder / "evaluation" / on / f"{name}{ANSWERS}", measured["answers"])
    write_before_after(folder, on, heldout)
    return dict(measured["summary"])


def run_evaluate_samples(config: Config, samples: Path) -> dict[str, Any]:
    """pass@k of a file of samples on the problems of the task; what came of each is written beside the file."""
    problems = load_task(config.task).examples("heldout")
    if not problems or not problems[0].meta.get("tests"):
        raise UserError(f"task {config.task.name!r} has no held-out problems with tests", "--task humaneval")
    sandbox = config.sandbox.model_copy(update={"seconds": PATIENCE * config.sandbox.seconds})
    with runner_of(config) as runner, runner_of(config.model_copy(update={"sandbox": sandbox})) as patient:
        results = judge_samples(samples, problems, runner, patient)
    out = samples.with_name(f"{samples.name.partition('.jsonl')[0]}_results.jsonl")
    write_jsonl(out, results)
    return {**sample_summary(results, problems), "out": str(out)}


def measure_with(task: Task, runner: Runner) -> Measure:
    """How answers are measured: by running their tests where they have some, else by the task's own scores."""

    def measure(examples: Sequence[Example], responses: Sequence[str]) -> list[dict[str, Any]]:
        asked = list(zip(examples, responses, strict=True))
        tested = [each for each in asked if _tests(each[0])]
        references = [reference_program(example) for example, _ in tested]
        verdicts = iter(runner.run_all([_job(*each) for each in tested], references=references))
        return [
            _measured(next(verdicts), each[0]) if _tests(each[0]) else {"scores": task.scores(*each)}
            for each in asked
        ]

    return measure


def _tests(example: Example) -> str:
    return str(example.meta.get("tests") or "")


def _job(example: Example, response: str) -> tuple[str, str]:
    tests = _tests(example)
    return extract_program(response, wanted_names(tests, str(example.meta.get("entry_point", "")))).code, tests


def _measured(verdict: Verdict, example: Example) -> dict[str, Any]:
    passed = passed_or_none(verdict, example)
    return {
        "scores": {} if passed is None else {"pass": float(passed)},
        "outcome": verdict.outcome,
        "tier": verdict.tier,
    }


def evaluate_policy(
    policy: Policy, heldout: Sequence[Example], config: Config, measure: Measure, critic: Critic | None = None
) -> dict[str, Any]:
    """Greedy once and sampled `evaluate.samples` times; the mean of every measure, and the greedy answers.

    With a critic (the run's reward model) its token reward is measured on the same answers. Where programs were
    run, `tier` says what protected the machine.
    """
    seed_everything(config.run.seed)
    repeated = [example for example in heldout for _ in range(config.evaluate.samples)]
    greedy_settings = config.generation.model_copy(update={"temperature": 0.0})
    ways = {"greedy": (heldout, greedy_settings), "sampled": (repeated, config.generation)}
    summary: dict[str, Any] = {"prompts": float(len(heldout)), "samples": float(config.evaluate.samples)}
    rows: dict[str, list[dict[str, Any]]] = {}
    for way, (examples, generation) in ways.items():
        answers = sample(policy, examples, generation)
        texts = [text for _, text in answers]
        rows[way] = [
            {"id": example.id, "response": text, **found}
            for example, text, found in zip(examples, texts, measure(examples, texts), strict=True)
        ]
        figures = mean_scores(rows[way])
        if critic is not None:
            figures |= judged(critic, examples, answers, TokenTable(policy.tokenizer), config)
        summary |= {f"{way}_{name}": value for name, value in figures.items()}
    tiers = {row["tier"] for answers_of in rows.values() for row in answers_of if "tier" in row}
    if tiers:
        summary["tier"] = "/".join(sorted(tiers))
    return {"summary": summary, "answers": rows["greedy"]}


def mean_scores(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Mean of every measure over the answers that have it."""
    names = sorted({name for row in rows for name in row["scores"]})
    return {name: mean([row["scores"][name] for row in rows if name in row["scores"]]) for name in names}


def judged(
    critic: Critic,
    examples: Sequence[Example],
    answers: Sequence[tuple[list[int], str]],
    table: TokenTable,
    config: Config,
) -> dict[str, float]:
    """The critic's token reward on sampled answers, by the credit settings of the run."""
    judgements = critic.critique(list(examples), [text for _, text in answers])
    return reward_report(judgements, [table.align(ids) for ids, _ in answers], config.credit)


def write_before_after(folder: Path, on: str, heldout: Sequence[Example]) -> None:
    """Greedy answers of every policy measured so far side by side, SFT first, for the report.

    Those to the prompts of other tasks than `on` (`folder.measured_on`) stay in the file.
    """
    files = {
        file.name.removesuffix(ANSWERS): file for file in sorted((folder / "evaluation" / on).glob(f"*{ANSWERS}"))
    }
    answers = {
        TITLES.get(name, name): {row["id"]: row for row in json.loads(files[name].read_text(encoding="utf-8"))}
        for name in sorted(files, key="sft".__ne__)
    }
    records: list[dict[str, Any]] = [
        {
            "task": on,
            "id": example.id,
            "prompt": [message.model_dump() for message in example.prompt],
            "reference": example.reference,
            "answers": [
                {"name": title, "response": rows[example.id]["response"], "scores": rows[example.id]["scores"]}
                for title, rows in answers.items()
                if example.id in rows
            ],
        }
        for example in heldout
    ]
    # Those that changed first: the report shows the first few dozen.
    records.sort(key=lambda record: len({answer["response"] for answer in record["answers"]}) == 1)
    path = folder / "before_after.jsonl"
    lines = [to_json(record) for record in [*_of_other_tasks(path, on), *records]]
    partial = path.with_name(path.name + ".partial")
    partial.write_text("\n".join(lines) + "\n", encoding="utf-8")
    partial.replace(path)


def _of_other_tasks(path: Path, on: str) -> list[dict[str, Any]]:
    """The records of a `before_after.jsonl` that name another task."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    records = [from_json(line) for line in text.splitlines() if line.strip()]
    return [record for record in records if record.get("task", on) != on]
