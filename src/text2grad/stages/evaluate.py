"""`evaluate`: a policy on held-out prompts, or a file of programs on a task's tests."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
from pathlib import Path
from typing import NamedTuple

from text2grad.align import TokenTable
from text2grad.align.variety import variety
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
from text2grad.feedback import Critic, Example
from text2grad.json_text import from_json, to_json
from text2grad.page import signs
from text2grad.policy.episode import MakeEnvironment
from text2grad.policy.load import load_frozen
from text2grad.policy.model import Policy
from text2grad.policy.settings import GenerationSettings
from text2grad.stages import Summary, inlined
from text2grad.stages.answers import judged_against, refuse_no_judge
from text2grad.stages.critics import judge_of, runner_of
from text2grad.stages.run_folder import (
    ANSWERS,
    SCORES,
    RunFolder,
    heldout_prompts,
    main_measure,
    target_name,
    write_json,
    write_whole,
)
from text2grad.stages.sampling import sample
from text2grad.stages.training import prepare
from text2grad.tasks.base import Task, environment_of, question_of, words_of


def below_scalar(run: RunFolder, name: str) -> Iterator[str]:
    """The signs (`page.signs`) that a run on token rewards is below scalar PPO, sampled, beyond chance; of the
    pairs of runs that `name` is one of."""
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
    """Return the lead of the other policy on each problem that both answered, sampled, by the main measure."""
    ours, theirs = (
        json.loads((place / f"{run}{SCORES}").read_text(encoding="utf-8")).get("sampled", {})
        for run in (own, other)
    )
    both = [(ours[id], theirs[id]) for id in ours if id in theirs and ours[id].keys() & theirs[id].keys()]
    if not both:
        return []
    shared = [name for name in both[0][0] if name in both[0][1]]
    measure = main_measure({name: sum(max(h.get(name, 0), t.get(name, 0)) for h, t in both) for name in shared})
    return [there[measure] - here[measure] for here, there in both if measure in here and measure in there]


TITLES = {"sft": "SFT", "scalar_ppo": "scalar PPO"}


@dataclass(frozen=True, kw_only=True)
class PolicySummary(Summary):
    """Mean scores of a policy, named `greedy_*`, `sampled_*` and `best_temperature_*`; `tier` protected the machine
    from its programs. `signs`: that a run
    is below scalar PPO."""

    prompts: float
    samples: float
    figures: Mapping[str, float] = inlined()
    tier: str | None = None
    judged: Mapping[str, float | str] = inlined()
    signs: Sequence[str] | None = None


class PolicyResults(NamedTuple):
    """A policy's figures, its greedy answers, and of each way to answer the means of every problem by its id."""

    summary: PolicySummary
    answers: list[Row]
    scores: Mapping[str, Mapping[str, Mapping[str, float]]] = {}


def run_evaluate(config: Config, target: str, against: str | None = None) -> PolicySummary:
    """Measure a policy (a name of this run, a folder, or a hub name) on held-out prompts.

    With `against` a judge compares its greedy answers with those in that file, or with the "references".
    """
    if against is not None:
        refuse_no_judge(config, "--against")
    run = prepare(config)
    task = run.task()
    heldout = heldout_prompts(task, config.evaluate.limit)
    others = _others(against, heldout)
    measured = _measured(config, run, target, task, heldout)
    name = target_name(target)
    if measured.scores:
        write_json(run.results / f"{name}{SCORES}", measured.scores)
        measured = with_signs(run, name, measured)
    run.write_results(name, measured.summary.as_dict(), measured.answers)
    if against is not None:
        texts = [str(row["response"]) for row in measured.answers]
        judged = judged_against(config, against, pair_with(name, against, heldout, texts, others))
        judged |= {"failed_records": judged["judge_failed"]}
        measured = measured._replace(summary=replace(measured.summary, judged=judged))
        run.write_results(name, measured.summary.as_dict(), measured.answers)
    write_before_after(run, heldout)
    return measured.summary


def with_signs(run: RunFolder, name: str, measured: PolicyResults) -> PolicyResults:
    """With what is wrong beside the policies measured before, which is also said."""
    found = list(below_scalar(run, name))
    for line in found:
        print(f"warning: {line}", file=sys.stderr)
    return measured._replace(summary=replace(measured.summary, signs=found or None))


def _others(against: str | None, heldout: Sequence[Example]) -> dict[str, str]:
    """The answers that a policy's are compared with, by id; checked before anything is sampled."""
    if against is None:
        return {}
    others = theirs_of(against, heldout, lambda: {example.id: example for example in heldout})
    pair_with("the policy", against, heldout, [""] * len(heldout), others)
    return others


def _measured(config: Config, run: RunFolder, target: str, task: Task, heldout: Sequence[Example]) -> PolicyResults:
    validation = validation_prompts(task, config)
    policy = load_frozen(run.policy(target))
    critic = judge_of(config)
    with runner_of(config.sandbox) as runner:
        return evaluate_policy(policy, heldout, config, TaskMeasure(task, runner), critic, validation, words=True)


def validation_prompts(task: Task, config: Config) -> list[Example]:
    """The prompts on which the temperature is chosen, none without `evaluate.temperatures`: the last
    `evaluate.validation` of the training prompts. None is held out.

    Raises:
        UserError: the task has no training prompts.
    """
    if not config.evaluate.temperatures:
        return []
    heldout = {words_of(question_of(example)) for example in task.examples("heldout")}
    found = [each for each in task.examples("train") if words_of(question_of(each)) not in heldout]
    if not found:
        raise UserError(
            f"task {config.task.name!r} has no training prompts to choose a temperature on",
            "leave out evaluate.temperatures, and set generation.temperature to the one chosen on another task",
        )
    return found[-config.evaluate.validation :]


def evaluate_policy(
    policy: Policy,
    heldout: Sequence[Example],
    config: Config,
    measure: TaskMeasure,
    critic: Critic | None = None,
    validation: Sequence[Example] = (),
    words: bool = False,
) -> PolicyResults:
    """Greedy once and sampled `evaluate.samples` times; the mean of every measure, and the greedy answers.

    With `validation` prompts also sampled at the best of `evaluate.temperatures`. With a critic (the run's reward
    model) its token reward is measured on the same answers. With `words` answers in words are compared with the
    prompts' references, too.
    """
    figures: dict[str, float] = {}
    rows: dict[str, list[Row]] = {}
    environment = environment_of(measure.task)
    if environment and critic:
        problem = "evaluate.token_reward reads single answers, and this task has an environment"
        raise UserError(problem, "--evaluate.token_reward false")

    def answer(way: str, temperature: float, samples: int) -> None:
        examples = [example for example in heldout for _ in range(samples)]
        generation = config.generation.model_copy(update={"temperature": temperature})
        texts, ids = answers_to(policy, examples, generation, environment)
        triples = zip(examples, texts, measure(examples, texts), strict=True)
        rows[way] = [{"id": example.id, "response": text, **known} for example, text, known in triples]
        found = mean_scores(rows[way])  # first, and a measure of the task keeps its name
        found = found | {"length": mean([len(each) for each in ids]), **variety(ids)} | found
        found = found | (word_figures(examples, texts) if words else {}) | found
        if critic is not None:
            table = TokenTable(policy.tokenizer)
            aligned = [table.align(each) for each in ids]
            found = found | reward_report(critic.critique(examples, texts), aligned, config.credit) | found
        figures.update({f"{way}_{name}": value for name, value in found.items()})

    seed_everything(config.run.seed)
    answer("greedy", 0.0, 1)
    answer("sampled", config.generation.temperature, config.evaluate.samples)
    if validation:
        seed_everything(config.run.seed)
        tried = try_temperatures(policy, validation, config, measure)
        figures |= {f"validation_at_{temperature:g}": value for temperature, value in tried.items()}
        figures["best_temperature"] = max(tried, key=tried.__getitem__)
        answer("best_temperature", figures["best_temperature"], config.evaluate.samples)
    tiers = {row["tier"] for answers_of in rows.values() for row in answers_of if "tier" in row}
    summary = PolicySummary(
        prompts=float(len(heldout)),
        samples=float(config.evaluate.samples),
        figures=figures,
        tier="/".join(sorted(tiers)) or None,
    )
    return PolicyResults(summary, rows["greedy"], {way: by_problem(answered) for way, answered in rows.items()})


def answers_to(
    policy: Policy,
    examples: Sequence[Example],
    generation: GenerationSettings,
    environment: MakeEnvironment | None,
) -> tuple[list[str], list[list[int]]]:
    """One answer to each example, an episode in an environment: their texts, and the ids that were sampled."""
    answers = sample(policy, examples, generation, environment)
    ids = [[*chain.from_iterable(ids)] if environment is not None else ids for ids, _ in answers]
    return [text for _, text in answers], ids


def try_temperatures(
    policy: Policy, prompts: Sequence[Example], config: Config, measure: TaskMeasure
) -> dict[float, float]:
    """The mean of the task's main measure (`pass`, else `rouge_l`, else its first) at each of
    `evaluate.temperatures`.

    Raises:
        UserError: the task has no measure of its own.
    """
    repeated = [example for example in prompts for _ in range(config.evaluate.samples)]
    environment = environment_of(measure.task)
    tried: dict[float, float] = {}
    for temperature in config.evaluate.temperatures:
        generation = config.generation.model_copy(update={"temperature": temperature})
        texts, _ = answers_to(policy, repeated, generation, environment)
        scores = mean_scores(measure(repeated, texts))
        if not scores:
            cure = "leave out evaluate.temperatures"
            raise UserError(f"task {config.task.name!r} has no measure to choose a temperature by", cure)
        tried[temperature] = scores[main_measure(scores)]
    return tried


def write_before_after(run: RunFolder, heldout: Sequence[Example]) -> None:
    """Greedy answers of every policy measured so far side by side, SFT first, for the report.

    Those to the prompts of other tasks stay in the file. Where policies are
    measured side by side, the last to write has read all: each writes again while there are new answers.
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
    write_whole(path, "".join(to_json(record) + "\n" for record in [*kept, *records]))
