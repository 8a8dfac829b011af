"""`evaluate`: a policy on held-out prompts, or a file of programs on a task's tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from text2grad.align import TokenTable
from text2grad.config import Config
from text2grad.critics.program import Attempt, run_attempts
from text2grad.durable.state import seed_everything
from text2grad.errors import UserError
from text2grad.eval.code import judge_samples, passed_or_none, sample_summary
from text2grad.eval.metrics import mean
from text2grad.eval.reward_model import reward_report
from text2grad.feedback import Critic, Example, from_json, to_json, write_jsonl
from text2grad.policy.load import load_frozen
from text2grad.policy.model import Policy
from text2grad.sandbox import Runner
from text2grad.stages.critics import judge_of, runner_of
from text2grad.stages.folder import measured_on, policy_name, prepare, task_of, write_json
from text2grad.stages.sampling import sample
from text2grad.stages.summary import Summary, inlined
from text2grad.tasks.base import Task, load_task

ANSWERS = ".answers.json"
PATIENCE = 5
TITLES = {"sft": "SFT", "scalar_ppo": "scalar PPO"}

Row = dict[str, Any]
"""One answer: `id`, `response`, its `scores` by name; of a program that was run, `outcome` and `tier` too."""
Measure = Callable[[Sequence[Example], Sequence[str]], list[Row]]
"""Answers -> what is known of each, without its id and response."""


@dataclass(frozen=True, kw_only=True)
class PolicySummary(Summary):
    """Mean scores of a policy, named `greedy_*` and `sampled_*`; `tier` protected the machine from its programs."""

    prompts: float
    samples: float
    figures: Mapping[str, float] = inlined()
    tier: str | None = None


class Measured(NamedTuple):
    """A policy's figures, and its greedy answers."""

    summary: PolicySummary
    answers: list[Row]


@dataclass(frozen=True, kw_only=True)
class SamplesSummary(Summary):
    """pass@k of a file of samples (`eval.code.sample_summary`), and the file with what came of each."""

    figures: Mapping[str, Any] = inlined()
    out: str


def run_evaluate(config: Config, target: str) -> PolicySummary:
    """Measure a policy (a name of this run, a folder, or a hub name) on held-out prompts."""
    folder = prepare(config)
    task = task_of(config)
    settings = config.policy.model_copy(update={"model": policy_name(config, target)})
    heldout = task.examples("heldout")[: config.evaluate.limit]
    if not heldout:
        raise UserError("no held-out prompts to evaluate on", "raise task.heldout_share")
    policy = load_frozen(settings)
    critic = judge_of(config)
    with runner_of(config) as runner:
        measured = evaluate_policy(policy, heldout, config, measure_with(task, runner), critic)
    name = target if target.isidentifier() else Path(target).name
    on = measured_on(config)
    write_json(folder / "evaluation" / on / f"{name}.json", measured.summary.as_dict())
    write_json(folder / "evaluation" / on / f"{name}{ANSWERS}", measured.answers)
    write_before_after(folder, on, heldout)
    return measured.summary


def run_evaluate_samples(config: Config, samples: Path) -> SamplesSummary:
    """pass@k of a file of samples on the problems of the task; the result of each is written next to the file."""
    problems = load_task(config.task).examples("heldout")
    if not problems or not problems[0].meta.get("tests"):
        raise UserError(f"task {config.task.name!r} has no held-out problems with tests", "--task humaneval")
    sandbox = config.sandbox.model_copy(update={"seconds": PATIENCE * config.sandbox.seconds})
    with runner_of(config) as runner, runner_of(config.model_copy(update={"sandbox": sandbox})) as patient:
        results = judge_samples(samples, problems, runner, patient)
    out = samples.with_name(f"{samples.name.partition('.jsonl')[0]}_results.jsonl")
    write_jsonl(out, results)
    return SamplesSummary(figures=sample_summary(results, problems), out=str(out))


def measure_with(task: Task, runner: Runner) -> Measure:
    """How answers are measured: by running their tests where they have some, else by the task's own scores."""

    def measure(examples: Sequence[Example], responses: Sequence[str]) -> list[Row]:
        attempts = [Attempt(*pair) for pair in zip(examples, responses, strict=True)]
        verdicts = iter(run_attempts(runner, [each for each in attempts if each.tests]))
        rows: list[Row] = []
        for each in attempts:
            if not each.tests:
                rows.append({"scores": task.scores(each.example, each.response)})
                continue
            verdict = next(verdicts)
            passed = passed_or_none(verdict, each.example)
            scores = {} if passed is None else {"pass": float(passed)}
            rows.append({"scores": scores, "outcome": verdict.outcome, "tier": verdict.tier})
        return rows

    return measure


def evaluate_policy(
    policy: Policy, heldout: Sequence[Example], config: Config, measure: Measure, critic: Critic | None = None
) -> Measured:
    """Greedy once and sampled `evaluate.samples` times; the mean of every measure, and the greedy answers.

    With a critic (the run's reward model) its token reward is measured on the same answers.
    """
    seed_everything(config.run.seed)
    repeated = [example for example in heldout for _ in range(config.evaluate.samples)]
    greedy_settings = config.generation.model_copy(update={"temperature": 0.0})
    ways = {"greedy": (heldout, greedy_settings), "sampled": (repeated, config.generation)}
    figures: dict[str, float] = {}
    rows: dict[str, list[Row]] = {}
    for way, (examples, generation) in ways.items():
        answers = sample(policy, examples, generation)
        texts = [text for _, text in answers]
        triples = zip(examples, texts, measure(examples, texts), strict=True)
        rows[way] = [{"id": example.id, "response": text, **known} for example, text, known in triples]
        found = mean_scores(rows[way])
        if critic is not None:
            table = TokenTable(policy.tokenizer)
            aligned = [table.align(ids) for ids, _ in answers]
            found |= reward_report(critic.critique(list(examples), texts), aligned, config.credit)
        figures |= {f"{way}_{name}": value for name, value in found.items()}
    tiers = {row["tier"] for answers_of in rows.values() for row in answers_of if "tier" in row}
    counts = {"prompts": float(len(heldout)), "samples": float(config.evaluate.samples)}
    summary = PolicySummary(**counts, figures=figures, tier="/".join(sorted(tiers)) or None)
    return Measured(summary, rows["greedy"])


def mean_scores(rows: Sequence[Row]) -> dict[str, float]:
    """Mean of every measure over the answers that have it."""
    names = sorted({name for row in rows for name in row["scores"]})
    return {name: mean([row["scores"][name] for row in rows if name in row["scores"]]) for name in names}


def write_before_after(folder: Path, on: str, heldout: Sequence[Example]) -> None:
    """Greedy answers of every policy measured so far side by side, SFT first, for the report.

    Those to the prompts of other tasks than `on` (`folder.measured_on`) stay in the file.
    """
    files = {file.name.removesuffix(ANSWERS): file for file in (folder / "evaluation" / on).glob(f"*{ANSWERS}")}
    answers = {
        TITLES.get(name, name): {row["id"]: row for row in json.loads(files[name].read_text(encoding="utf-8"))}
        for name in sorted(files, key=lambda name: (name != "sft", name))
    }
    records: list[Row] = [
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
    lines = path.read_text(encoding="utf-8").split("\n") if path.is_file() else []
    kept = [record for record in map(from_json, filter(None, lines)) if record.get("task", on) != on]
    partial = path.with_name(path.name + ".partial")
    partial.write_text("".join(to_json(record) + "\n" for record in [*kept, *records]), encoding="utf-8")
    partial.replace(path)
