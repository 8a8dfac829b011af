"""`evaluate`: measure a policy on held-out prompts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain, product
from pathlib import Path
from typing import Any, NamedTuple

from text2grad.align import CreditSettings, get_table
from text2grad.align.variety import measure_variety
from text2grad.config import Config, load_config
from text2grad.durable.state import seed_everything
from text2grad.errors import UserError
from text2grad.eval.answers import pair_answers, read_opponent
from text2grad.eval.critics.reward_model import reward_report
from text2grad.eval.measures import (
    Row,
    TaskMeasure,
    by_problem,
    mean_scores,
    word_figures,
)
from text2grad.eval.metrics import mean, mean_with_interval
from text2grad.feedback import Critic, Example, get_judgements
from text2grad.json_text import to_json
from text2grad.jsonl import json_lines, reading
from text2grad.page import signs
from text2grad.policy.model import Policy
from text2grad.policy.settings import GenerationSettings
from text2grad.stages import Summary, inlined
from text2grad.stages.critics import critic_factory
from text2grad.stages.evaluate.answers import judge_against, judge_of_answers
from text2grad.stages.evaluate.devices import DeviceSampler, find_devices
from text2grad.stages.run_folder import (
    ANSWERS,
    BASE,
    SCORES,
    SFT,
    RunFolder,
    heldout_prompts,
    main_measure,
    read_json,
    target_name,
    write_atomically,
    write_json,
)
from text2grad.stages.sampling import sample
from text2grad.stages.training import prepare
from text2grad.tasks.base import Task, get_environment_factory, question_key


def warn_below_scalar(run: RunFolder, name: str) -> Iterator[str]:
    """Yield warnings that a run on token rewards is significantly below scalar PPO (`page.signs`).

    Sampled answers are compared, in every pair of runs that includes `name`.
    """
    folders = [config.parent for config in sorted(run.path.glob("ppo/*/config.yaml"))]
    kinds = {path.name: _reward_kind(path) for path in folders if (run.results / f"{path.name}{SCORES}").is_file()}
    token_runs, scalar_runs = (
        [policy for policy, kind in kinds.items() if kind == rewards] for rewards in ("tokens", "scalar")
    )
    for token_run, scalar_run in product(token_runs, scalar_runs):
        if name not in (token_run, scalar_run):
            continue
        _, pairs = _paired_values(run.results, token_run, scalar_run)
        if pairs:
            lead, *interval = mean_with_interval([scalar - token for token, scalar in pairs])
            yield from signs.scalar_warnings(token_run, scalar_run, lead, interval)


def _reward_kind(run: Path) -> str:
    """Return `tokens` or `scalar` for a PPO run by its rewards; "" for other runs."""
    metrics = run / "metrics.jsonl"
    with metrics.open(encoding="utf-8") if metrics.is_file() else (run / "config.yaml").open() as lines:
        if "critic_failed" not in next(lines, ""):
            return ""
    try:
        settings = load_config(run / "config.yaml")
    except UserError:  # written by another version, so not comparable
        return ""
    if not settings.credit.by_score:
        return "tokens"
    return "scalar" if settings.ppo.advantage != "group" else ""


def _paired_values(folder: Path, name: str, other: str) -> tuple[str, list[tuple[float, float]]]:
    """Return the main measure, and its values for two policies' sampled answers.

    There is a pair of values per problem that both policies answered.
    """
    scores, other_scores = (read_json(folder / f"{policy}{SCORES}").get("sampled", {}) for policy in (name, other))
    pairs = [
        (scores[id], other_scores[id])
        for id in scores
        if id in other_scores and scores[id].keys() & other_scores[id].keys()
    ]
    if not pairs:
        return "", []
    shared = [measure for measure in pairs[0][0] if measure in pairs[0][1]]
    # `main_measure` has to know which measures are 0 for both policies.
    sums = {measure: sum(max(a.get(measure, 0), b.get(measure, 0)) for a, b in pairs) for measure in shared}
    measure = main_measure(sums)
    return measure, [(a[measure], b[measure]) for a, b in pairs if measure in a and measure in b]


def compare_with_start(run: RunFolder, name: str) -> dict[str, Any] | None:
    """Compare a policy of the run with its starting policy; None if that was not measured.

    Returns:
        The name of the other policy (`against`), the `measure`, the number of `prompts`, the means
        of both (`value`, `other`), and the 95 % `interval` of their difference, paired by prompt.
    """
    starts = {SFT: [BASE]} | {path.parent.name: [SFT, BASE] for path in run.path.glob("ppo/*/policy")}
    other = next((start for start in starts.get(name, []) if (run.results / f"{start}{SCORES}").is_file()), None)
    measure, pairs = _paired_values(run.results, name, other) if other else ("", [])
    if not pairs:
        return None
    _, *interval = mean_with_interval([value - start for value, start in pairs])
    return {
        "against": other,
        "measure": f"sampled {measure}",
        "prompts": len(pairs),
        "value": mean([value for value, _ in pairs]),
        "other": mean([start for _, start in pairs]),
        "interval": interval,
    }


TITLES = {"sft": "SFT", "scalar_ppo": "scalar PPO"}


@dataclass(frozen=True, kw_only=True)
class PolicySummary(Summary):
    """Mean scores of a policy, named `greedy_*`, `sampled_*` and `best_temperature_*`.

    `tier` names the tiers of the sandbox that ran its programs. `signs` are warnings that a run is
    below scalar PPO.
    """

    prompts: float
    samples: float
    figures: Mapping[str, float] = inlined()
    tier: str | None = None
    judge_figures: Mapping[str, float | str] = inlined()
    signs: Sequence[str] | None = None
    compared: Mapping[str, Any] | None = None


class PolicyResults(NamedTuple):
    """A policy's figures, its greedy answers, and mean scores by way to answer and problem."""

    summary: PolicySummary
    answers: list[Row]
    scores: Mapping[str, Mapping[str, Mapping[str, float]]]


class Answers(NamedTuple):
    """Answers to prompts: the texts, the sampled ids, and a row of measures per answer."""

    examples: Sequence[Example]
    texts: list[str]
    ids: list[list[int]]
    rows: list[Row]


Figures = Callable[[Answers], dict[str, float]]
"""A function that computes extra figures of answers."""


@dataclass(frozen=True)
class Exam:
    """An evaluation of policies on prompts, with greedy answers and `samples` answers per prompt.

    With `validation` prompts, the best of `temperatures` is selected on them. `sampler` replaces
    `sample`.
    """

    prompts: Sequence[Example]
    measure: TaskMeasure
    generation: GenerationSettings
    samples: int
    seed: int
    temperatures: Sequence[float] = ()
    validation: Sequence[Example] = ()
    sampler: DeviceSampler | None = None

    def answers(
        self, policy: Policy, temperature: float, samples: int, prompts: Sequence[Example] | None = None
    ) -> Answers:
        """Sample answers to the prompts (default: those of the exam); episodes in environments."""
        examples = [example for example in prompts or self.prompts for _ in range(samples)]
        generation = self.generation.model_copy(update={"temperature": temperature})
        environment = get_environment_factory(self.measure.task)
        sampled = (self.sampler or sample)(policy, examples, generation, environment)
        texts = [text for _, text in sampled]
        triples = zip(examples, texts, self.measure(examples, texts), strict=True)
        rows = [{"id": example.id, "response": text, **row} for example, text, row in triples]
        ids = [[*chain.from_iterable(ids)] if environment is not None else ids for ids, _ in sampled]
        return Answers(examples, texts, ids, rows)


def run_evaluate(config: Config, target: str, against: str | None = None) -> PolicySummary:
    """Measure a policy (a name in this run, a folder, or a hub name) on held-out prompts.

    With `against`, a judge compares its greedy answers with the answers in that file, or with the
    "references".
    """
    judge = judge_of_answers(config) if against is not None else None
    prepare(config)
    with critic_factory(config) as factory, ExitStack() as stack:
        run = factory.run
        task = run.task()
        heldout = heldout_prompts(task, config.evaluate.limit)
        others = _read_others(against, heldout)
        settings = config.evaluate
        devices = find_devices(config.policy.device)
        sampler = stack.enter_context(DeviceSampler(config, target, devices)) if len(devices) > 1 else None
        exam = Exam(
            heldout,
            TaskMeasure(task, factory.runner),
            config.generation,
            settings.samples,
            config.run.seed,
            settings.temperatures,
            validation_prompts(task, settings.validation) if settings.temperatures else (),
            sampler,
        )
        policy = run.load_policy(target)
        critic = stack.enter_context(factory.heldout_critic())
        if critic is not None and get_environment_factory(task):
            problem = "evaluate.token_reward does not support tasks with an environment"
            raise UserError(problem, "--evaluate.token_reward false")
        results = evaluate_policy(policy, exam, make_extra_figures(policy, critic, config.credit))
    name = target_name(target)
    if unmeasured := sum(not row["scores"] for row in results.answers):
        lacking = "have neither a reference nor tests: ROUGE, BLEU and pass leave them out"
        print(f"{unmeasured} of {len(heldout)} held-out prompts {lacking}", file=sys.stderr)
    write_json(run.results / f"{name}{SCORES}", results.scores)
    warnings = list(warn_below_scalar(run, name))
    for line in warnings:
        print(f"warning: {line}", file=sys.stderr)
    summary = replace(results.summary, signs=warnings or None)
    run.write_results(name, summary.as_dict(), results.answers)
    if judge and against:
        texts = [str(row["response"]) for row in results.answers]
        verdicts = judge_against(judge, against, pair_answers(name, against, heldout, texts, others))
        summary = replace(summary, judge_figures=verdicts | {"failed_records": verdicts["judge_failed"]})
        run.write_results(name, summary.as_dict(), results.answers)
    write_before_after(run, heldout)
    return replace(summary, compared=compare_with_start(run, name))


def _read_others(against: str | None, heldout: Sequence[Example]) -> dict[str, str]:
    """Return the answers to compare with, by id; checked before anything is sampled."""
    if against is None:
        return {}
    others = read_opponent(against, heldout, lambda: {example.id: example for example in heldout})
    pair_answers("the policy", against, heldout, [""] * len(heldout), others)
    return others


def validation_prompts(task: Task, count: int) -> list[Example]:
    """Return the last `count` training prompts, on which the temperature is selected.

    Raises:
        UserError: the task has no training prompts.
    """
    heldout = {question_key(example) for example in task.examples("heldout")}
    prompts = [prompt for prompt in task.examples("train") if question_key(prompt) not in heldout]
    if not prompts:
        raise UserError(
            f"task {task.name!r} has no training prompts to choose a temperature on",
            "remove evaluate.temperatures, and set generation.temperature to the one chosen on another task",
        )
    return prompts[-count:]


def make_extra_figures(policy: Policy, critic: Critic | None, credit: CreditSettings) -> Figures:
    """Return a function that compares answers with references and measures token rewards."""

    def figures(answers: Answers) -> dict[str, float]:
        words = word_figures(answers.examples, answers.texts)
        if critic is None:
            return words
        table = get_table(policy.tokenizer)
        aligned = [table.align(ids) for ids in answers.ids]
        judgements = get_judgements(critic, answers.examples, answers.texts)
        return words | reward_report(judgements, aligned, credit) | words

    return figures


def evaluate_policy(policy: Policy, exam: Exam, extra_figures: Figures | None = None) -> PolicyResults:
    """Measure greedy answers and `exam.samples` sampled answers per prompt.

    If the exam has validation prompts, answers at the best temperature are measured too.
    """
    seed_everything(exam.seed)
    answers = {
        "greedy": exam.answers(policy, 0.0, 1),
        "sampled": exam.answers(policy, exam.generation.temperature, exam.samples),
    }
    figures: dict[str, float] = {}
    if exam.validation:
        seed_everything(exam.seed)
        scores_by_temperature = score_temperatures(policy, exam)
        best = max(scores_by_temperature, key=scores_by_temperature.__getitem__)
        figures = {f"validation_at_{temperature:g}": score for temperature, score in scores_by_temperature.items()}
        figures["best_temperature"] = best
        answers["best_temperature"] = exam.answers(policy, best, exam.samples)
    for way, sample_set in answers.items():
        figures |= {f"{way}_{name}": value for name, value in compute_figures(sample_set, extra_figures).items()}
    tiers = {row["tier"] for sample_set in answers.values() for row in sample_set.rows if "tier" in row}
    summary = PolicySummary(
        prompts=float(len(exam.prompts)),
        samples=float(exam.samples),
        figures=figures,
        tier="/".join(sorted(tiers)) or None,
    )
    scores = {way: by_problem(sample_set.rows) for way, sample_set in answers.items()}
    return PolicyResults(summary, answers["greedy"].rows, scores)


def compute_figures(answers: Answers, extra_figures: Figures | None) -> dict[str, float]:
    """Return the mean of every measure, the length and variety of answers, and extra figures.

    The task's measures take precedence over figures with the same name.
    """
    scores = mean_scores(answers.rows)
    lengths = {"length": mean([len(ids) for ids in answers.ids]), **measure_variety(answers.ids)}
    return scores | lengths | (extra_figures(answers) if extra_figures else {}) | lengths | scores


def score_temperatures(policy: Policy, exam: Exam) -> dict[float, float]:
    """Return the mean of the task's main measure at each temperature.

    Raises:
        UserError: the task has no measure.
    """
    means: dict[float, float] = {}
    for temperature in exam.temperatures:
        scores = mean_scores(exam.answers(policy, temperature, exam.samples, exam.validation).rows)
        if not scores:
            problem = f"task {exam.measure.task.name!r} has no measure to choose a temperature by"
            raise UserError(problem, "remove evaluate.temperatures")
        means[temperature] = scores[main_measure(scores)]
    return means


def write_before_after(run: RunFolder, heldout: Sequence[Example]) -> None:
    """Write the greedy answers of all measured policies side by side, SFT first, for the report.

    Answers to the prompts of other tasks stay in the file. Policies may be measured in parallel, so
    the file is written again until no new answers appear.
    """
    times: dict[Path, int] = {}
    while times != (current := {file: file.stat().st_mtime_ns for file in run.results.glob(f"*{ANSWERS}")}):
        times = current
        _write_answers(run.path / "before_after.jsonl", run.results.name, heldout, list(times))


def _write_answers(path: Path, task: str, heldout: Sequence[Example], answer_files: Sequence[Path]) -> None:
    files = {file.name.removesuffix(ANSWERS): file for file in answer_files}
    answers = {
        TITLES.get(name, name): {row["id"]: row for row in read_json(files[name])}
        for name in sorted(files, key=lambda name: (name != "sft", name))
    }
    records: list[Row] = [
        {
            "task": task,
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
    # Answers that changed come first: the report shows the first few dozen.
    records.sort(key=lambda record: len({answer["response"] for answer in record["answers"]}) == 1)
    others: list[Row] = []
    if path.is_file():
        with reading(path):
            lines = path.read_text(encoding="utf-8").split("\n")
        rows_of_file = json_lines(lines, path, "delete the file: evaluate writes it again")
        others = [record for _, record in rows_of_file if record.get("task", task) != task]
    write_atomically(path, "".join(to_json(record) + "\n" for record in [*others, *records]))
