"""`evaluate`: a policy on held-out prompts, or a file of programs on a task's tests."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain, product
from pathlib import Path
from typing import Any, NamedTuple

from text2grad.align import CreditSettings, TokenTable
from text2grad.align.variety import measure_variety
from text2grad.config import Config, load_config
from text2grad.durable.state import seed_everything
from text2grad.errors import UserError
from text2grad.eval.answers import pair_with, theirs_of
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
from text2grad.json_text import from_json, to_json
from text2grad.page import signs
from text2grad.policy.model import Policy
from text2grad.policy.settings import GenerationSettings
from text2grad.stages import Summary, inlined
from text2grad.stages.critics import critic_factory
from text2grad.stages.evaluate.answers import judge_of_answers, judged_against
from text2grad.stages.run_folder import (
    ANSWERS,
    BASE,
    SCORES,
    SFT,
    RunFolder,
    heldout_prompts,
    main_measure,
    target_name,
    write_atomically,
    write_json,
)
from text2grad.stages.sampling import sample
from text2grad.stages.training import prepare
from text2grad.tasks.base import Task, get_environment_factory, question_key


def below_scalar(run: RunFolder, name: str) -> Iterator[str]:
    """The signs (`page.signs`) that a run on token rewards is below scalar PPO, sampled, beyond
    chance; of the pairs of runs that `name` is one of."""
    place = run.results
    runs = [each.parent for each in sorted(run.path.glob("ppo/*/config.yaml"))]
    kinds = {each.name: _kind(each) for each in runs if (place / f"{each.name}{SCORES}").is_file()}
    of_tokens, scalar = ([own for own, kind in kinds.items() if kind == one] for one in ("tokens", "scalar"))
    for own, other in product(of_tokens, scalar):
        apart = _apart(place, own, other) if name in (own, other) else []
        if apart:
            ahead, *interval = mean_with_interval(apart)
            yield from signs.scalar_warnings(own, other, ahead, interval)


def _kind(run: Path) -> str:
    """`tokens` or `scalar` of a run of PPO, by what it was paid for; "" of anything else."""
    metrics = run / "metrics.jsonl"
    with metrics.open(encoding="utf-8") if metrics.is_file() else (run / "config.yaml").open() as lines:
        if "delta_sum" not in next(lines, ""):
            return ""
    try:
        settings = load_config(run / "config.yaml")
    except UserError:  # of another version: no run of today to compare with
        return ""
    if not settings.credit.by_score:
        return "tokens"
    return "scalar" if settings.ppo.advantage != "group" else ""


def _apart(place: Path, own: str, other: str) -> list[float]:
    """Return the lead of the other policy on each problem that both answered, sampled, by the main
    measure."""
    return [theirs - ours for ours, theirs in _paired_values(place, own, other)[1]]


def _paired_values(place: Path, own: str, other: str) -> tuple[str, list[tuple[float, float]]]:
    """Return the main measure of sampled answers, and both policies' values of it on each problem
    they share."""
    ours, theirs = (
        json.loads((place / f"{run}{SCORES}").read_text(encoding="utf-8")).get("sampled", {})
        for run in (own, other)
    )
    both = [(ours[id], theirs[id]) for id in ours if id in theirs and ours[id].keys() & theirs[id].keys()]
    if not both:
        return "", []
    shared = [name for name in both[0][0] if name in both[0][1]]
    measure = main_measure({name: sum(max(h.get(name, 0), t.get(name, 0)) for h, t in both) for name in shared})
    return measure, [(h[measure], t[measure]) for h, t in both if measure in h and measure in t]


def compared(run: RunFolder, name: str) -> dict[str, Any] | None:
    """Compare a policy of the run with the one its training started from; None: no measurements of
    it.

    Returns:
        The name of the other policy (`against`), the `measure`, the number of `prompts`, the means
        of both (`value`, `other`), and the 95 % `interval` of their difference, paired by prompt.
    """
    starts = {SFT: [BASE]} | {path.parent.name: [SFT, BASE] for path in run.path.glob("ppo/*/policy")}
    other = next((start for start in starts.get(name, []) if (run.results / f"{start}{SCORES}").is_file()), None)
    measure, pairs = _paired_values(run.results, name, other) if other else ("", [])
    if not pairs:
        return None
    _, *interval = mean_with_interval([ours - theirs for ours, theirs in pairs])
    return {
        "against": other,
        "measure": f"sampled {measure}",
        "prompts": len(pairs),
        "value": mean([ours for ours, _ in pairs]),
        "other": mean([theirs for _, theirs in pairs]),
        "interval": interval,
    }


TITLES = {"sft": "SFT", "scalar_ppo": "scalar PPO"}


@dataclass(frozen=True, kw_only=True)
class PolicySummary(Summary):
    """Mean scores of a policy, named `greedy_*`, `sampled_*` and `best_temperature_*`; `tier`
    protected the machine from its programs. `signs`: warnings that a run is below scalar PPO.
    `compared`: see the function."""

    prompts: float
    samples: float
    figures: Mapping[str, float] = inlined()
    tier: str | None = None
    judged: Mapping[str, float | str] = inlined()
    signs: Sequence[str] | None = None
    compared: Mapping[str, Any] | None = None


class PolicyResults(NamedTuple):
    """A policy's figures, its greedy answers, and of each way to answer the means of every problem
    by its id."""

    summary: PolicySummary
    answers: list[Row]
    scores: Mapping[str, Mapping[str, Mapping[str, float]]]


class Answers(NamedTuple):
    """Answers to prompts: their texts, the ids that were sampled, and a row of measures of each."""

    examples: Sequence[Example]
    texts: list[str]
    ids: list[list[int]]
    rows: list[Row]


Figures = Callable[[Answers], dict[str, float]]
"""Further figures of answers."""


@dataclass(frozen=True)
class Exam:
    """A measurement of policies on prompts: by a measure, greedily and by `samples` answers to each
    prompt.

    With `validation` prompts the best of `temperatures` is chosen on them.
    """

    prompts: Sequence[Example]
    measure: TaskMeasure
    generation: GenerationSettings
    samples: int
    seed: int
    temperatures: Sequence[float] = ()
    validation: Sequence[Example] = ()

    def answers(
        self, policy: Policy, temperature: float, samples: int, prompts: Sequence[Example] | None = None
    ) -> Answers:
        """Sample answers to each prompt, by default to those of the exam; in an environment,
        episodes."""
        examples = [example for example in prompts or self.prompts for _ in range(samples)]
        generation = self.generation.model_copy(update={"temperature": temperature})
        environment = get_environment_factory(self.measure.task)
        sampled = sample(policy, examples, generation, environment)
        texts = [text for _, text in sampled]
        triples = zip(examples, texts, self.measure(examples, texts), strict=True)
        rows = [{"id": example.id, "response": text, **row} for example, text, row in triples]
        ids = [[*chain.from_iterable(ids)] if environment is not None else ids for ids, _ in sampled]
        return Answers(examples, texts, ids, rows)


def run_evaluate(config: Config, target: str, against: str | None = None) -> PolicySummary:
    """Measure a policy (a name of this run, a folder, or a hub name) on held-out prompts.

    With `against` a judge compares its greedy answers with those in that file, or with the
    "references".
    """
    judge = judge_of_answers(config) if against is not None else None
    prepare(config)
    with critic_factory(config) as factory, ExitStack() as stack:
        run = factory.run
        task = run.task()
        heldout = heldout_prompts(task, config.evaluate.limit)
        others = _others(against, heldout)
        settings = config.evaluate
        exam = Exam(
            heldout,
            TaskMeasure(task, factory.runner),
            config.generation,
            settings.samples,
            config.run.seed,
            settings.temperatures,
            validation_prompts(task, settings.validation) if settings.temperatures else (),
        )
        policy = run.load_policy(target)
        critic = stack.enter_context(factory.heldout_critic())
        if critic is not None and get_environment_factory(task):
            problem = "evaluate.token_reward reads single answers, and this task has an environment"
            raise UserError(problem, "--evaluate.token_reward false")
        measured = evaluate_policy(policy, exam, further_figures(policy, critic, config.credit))
    name = target_name(target)
    write_json(run.results / f"{name}{SCORES}", measured.scores)
    summary = replace(measured.summary, signs=_warned_signs(run, name) or None)
    run.write_results(name, summary.as_dict(), measured.answers)
    if judge and against:
        texts = [str(row["response"]) for row in measured.answers]
        judged = judged_against(judge, against, pair_with(name, against, heldout, texts, others))
        summary = replace(summary, judged=judged | {"failed_records": judged["judge_failed"]})
        run.write_results(name, summary.as_dict(), measured.answers)
    write_before_after(run, heldout)
    return replace(summary, compared=compared(run, name))


def _warned_signs(run: RunFolder, name: str) -> list[str]:
    """The signs that a run is below the policies measured before; also printed."""
    lines = list(below_scalar(run, name))
    for line in lines:
        print(f"warning: {line}", file=sys.stderr)
    return lines


def _others(against: str | None, heldout: Sequence[Example]) -> dict[str, str]:
    """The answers that a policy's are compared with, by id; checked before anything is sampled."""
    if against is None:
        return {}
    others = theirs_of(against, heldout, lambda: {example.id: example for example in heldout})
    pair_with("the policy", against, heldout, [""] * len(heldout), others)
    return others


def validation_prompts(task: Task, count: int) -> list[Example]:
    """The prompts on which the temperature is chosen: the last `count` of the training prompts.
    None is held out.

    Raises:
        UserError: the task has no training prompts.
    """
    heldout = {question_key(example) for example in task.examples("heldout")}
    prompts = [prompt for prompt in task.examples("train") if question_key(prompt) not in heldout]
    if not prompts:
        raise UserError(
            f"task {task.name!r} has no training prompts to choose a temperature on",
            "leave out evaluate.temperatures, and set generation.temperature to the one chosen on another task",
        )
    return prompts[-count:]


def further_figures(policy: Policy, critic: Critic | None, credit: CreditSettings) -> Figures:
    """Figures beside those of the task: answers in words compared with references, and a critic's
    token rewards."""

    def figures(answers: Answers) -> dict[str, float]:
        words = word_figures(answers.examples, answers.texts)
        if critic is None:
            return words
        table = TokenTable(policy.tokenizer)
        aligned = [table.align(ids) for ids in answers.ids]
        judgements = get_judgements(critic, answers.examples, answers.texts)
        return words | reward_report(judgements, aligned, credit) | words

    return figures


def evaluate_policy(policy: Policy, exam: Exam, further: Figures | None = None) -> PolicyResults:
    """Greedy once and sampled `exam.samples` times; the mean of every measure, and the greedy
    answers.

    Where the exam has validation prompts, answers are sampled at the best of its temperatures too.
    """
    seed_everything(exam.seed)
    answers = {
        "greedy": exam.answers(policy, 0.0, 1),
        "sampled": exam.answers(policy, exam.generation.temperature, exam.samples),
    }
    figures: dict[str, float] = {}
    if exam.validation:
        seed_everything(exam.seed)
        tried = try_temperatures(policy, exam)
        best = max(tried, key=tried.__getitem__)
        figures = {f"validation_at_{temperature:g}": score for temperature, score in tried.items()}
        figures["best_temperature"] = best
        answers["best_temperature"] = exam.answers(policy, best, exam.samples)
    for way, answered in answers.items():
        figures |= {f"{way}_{name}": value for name, value in figures_of(answered, further).items()}
    tiers = {row["tier"] for answered in answers.values() for row in answered.rows if "tier" in row}
    summary = PolicySummary(
        prompts=float(len(exam.prompts)),
        samples=float(exam.samples),
        figures=figures,
        tier="/".join(sorted(tiers)) or None,
    )
    scores = {way: by_problem(answered.rows) for way, answered in answers.items()}
    return PolicyResults(summary, answers["greedy"].rows, scores)


def figures_of(answers: Answers, further: Figures | None) -> dict[str, float]:
    """The mean of every measure, the length and variety of answers, and further figures.

    A measure keeps its name where two have the same.
    """
    scores = mean_scores(answers.rows)
    lengths = {"length": mean([len(ids) for ids in answers.ids]), **measure_variety(answers.ids)}
    return scores | lengths | (further(answers) if further else {}) | lengths | scores


def try_temperatures(policy: Policy, exam: Exam) -> dict[float, float]:
    """The mean of the task's main measure (`pass`, else `rouge_l`, else its first) at each
    temperature.

    Raises:
        UserError: the task has no measure of its own.
    """
    tried: dict[float, float] = {}
    for temperature in exam.temperatures:
        scores = mean_scores(exam.answers(policy, temperature, exam.samples, exam.validation).rows)
        if not scores:
            problem = f"task {exam.measure.task.name!r} has no measure to choose a temperature by"
            raise UserError(problem, "leave out evaluate.temperatures")
        tried[temperature] = scores[main_measure(scores)]
    return tried


def write_before_after(run: RunFolder, heldout: Sequence[Example]) -> None:
    """Greedy answers of every policy measured so far side by side, SFT first, for the report.

    Those to the prompts of other tasks stay in the file. Where policies are
    measured side by side, the last to write has read all: each writes again while there are new
    answers.
    """
    read: dict[Path, int] = {}
    while read != (there := {file: file.stat().st_mtime_ns for file in run.results.glob(f"*{ANSWERS}")}):
        read = there
        _write_answers(run.path / "before_after.jsonl", run.results.name, heldout, list(read))


def _write_answers(path: Path, on: str, heldout: Sequence[Example], read: Sequence[Path]) -> None:
    files = {file.name.removesuffix(ANSWERS): file for file in read}
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
    lines = path.read_text(encoding="utf-8").split("\n") if path.is_file() else []
    kept = [record for record in map(from_json, filter(None, lines)) if record.get("task", on) != on]
    write_atomically(path, "".join(to_json(record) + "\n" for record in [*kept, *records]))
