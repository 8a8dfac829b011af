"""`annotate`: any critic over any responses, from a file or from the policy.

Judging a file imports no torch.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from text2grad.chat.journal import FAILURE_STATES, STATES
from text2grad.config import Config
from text2grad.critics.program import outcome_counts
from text2grad.data.records import write_feedback
from text2grad.data.responses import Item, Items, check_items, read_items
from text2grad.errors import UsageError, UserError
from text2grad.eval.metrics import mean
from text2grad.feedback import Critic, Example, Failure, Feedback, get_judgements
from text2grad.jsonl import refuse_folder
from text2grad.policy.settings import GenerationSettings
from text2grad.stages import Summary, inlined
from text2grad.stages.critics import CriticFactory, critic_factory, prompt_name
from text2grad.stages.paid import AnnotateOptions, PaidJob, refuse_endpoint_options
from text2grad.stages.run_folder import HELDOUT_FEEDBACK, RunFolder
from text2grad.tasks.base import Task, feedback_split, get_environment_factory

AT_A_TIME = 8192
"""Items that a critic is shown at once: their judgements are held until all of them are judged."""


@dataclass(frozen=True, kw_only=True)
class JudgedSummary(Summary):
    """Counts of the judgements by outcome, and of the records written, for a critic that costs
    nothing."""

    requested: int
    ended: Mapping[str, int] = inlined()
    usd: float = 0.0
    records: int
    heldout_records: int | None = None
    kept_records: int
    spans: int
    failed_records: int
    mean_score: float
    outcomes: Mapping[str, int] | None = None
    out: str


@dataclass
class Tally:
    """Counts of the records that were written."""

    ended: Counter[str] = field(default_factory=Counter)
    scores: list[float] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    spans: int = 0
    kept: int = 0

    def counted(self, records: Iterable[Feedback]) -> Iterator[Feedback]:
        """The records, counted on their way."""
        for record in records:
            judgement = record.judgement()
            self.ended[FAILURE_STATES[judgement.kind] if isinstance(judgement, Failure) else "ok"] += 1
            self.scores += [record.score] if record.score is not None else []
            self.outcomes.update(outcome_counts([record]))
            self.spans += len(record.spans)
            yield record


def run_annotate(
    config: Config,
    responses: Path | None = None,
    out: Path | None = None,
    options: AnnotateOptions = AnnotateOptions(),  # noqa: B008 - frozen
) -> Summary:
    """Have responses judged: those of the file `responses`, else the policy's own, which are
    sampled first.

    Writes `out` (by default `feedback.jsonl` of the run) and, of held-out prompts,
    `feedback_heldout.jsonl` beside it, so that a reward model can be measured on responses to
    prompts it has never seen.

    Raises:
        UsageError: options that contradict each other, or are of no use with this critic.
        UserError: an item is bad (before any is judged), or a mistake that fails every critique.
    """
    kind, target = config.annotate.critic or config.critic.kind, out or config.run.folder / "feedback.jsonl"
    if out is not None:
        refuse_folder(out)
    if kind != "prompted":
        refuse_endpoint_options(options)
    if options.start and (responses is not None or options.anchor):
        raise UsageError("--from names the policy that answers, and none is sampled", "leave out --from")
    job = None
    if kind == "prompted":
        endpoint = config.critic.prompted
        if options.budget_usd is not None:
            endpoint = endpoint.model_copy(update={"budget_usd": options.budget_usd})
        job = PaidJob(endpoint, prompt_name(endpoint, config.task), options)
    with critic_factory(config, kind) as factory:
        if responses is None:
            return annotate_samples(config, factory, target, options, job)
        return annotate_file(config, factory, responses, target, options, job)


def annotate_file(
    config: Config,
    factory: CriticFactory,
    responses: Path,
    target: Path,
    options: AnnotateOptions,
    job: PaidJob | None,
) -> Summary:
    """Have the responses in a file judged, by a paid job or by the critic of the factory."""
    write = factory.run.turn_writer()

    def items() -> Iterator[Item]:
        return islice(read_items(responses, options.anchor, write, options.sheet), options.limit)

    refuse_none(items)
    if options.anchor and not any(item.comment for item in items()):
        raise UserError(
            f"{responses} has no person's comment without marked words", "leave out --anchor to judge it"
        )
    if job is not None:
        return job.plan(items, target) if options.plan else job.annotate(items, target)
    if factory.kind == "reward_model":
        from text2grad.stages.training import prepare

        prepare(config)
    judged: Items = items
    if factory.kind == "program":
        warn_without_reference(items)
        judged = _admitted(factory, items)
    with factory.open() as critic:
        return summary_of(target, criticise(critic, judged, target))


def _admitted(factory: CriticFactory, items: Items) -> Items:
    """The responses to tasks whose tests may judge a program."""
    tasks = {_task_key(item.example): item.example for item in items()}
    keys = set(map(_task_key, factory.admitted(list(tasks.values()))))
    return lambda: (item for item in items() if _task_key(item.example) in keys)


def _task_key(example: Example) -> tuple[str, ...]:
    """Return the key of a task in the gate; responses with different ids may share a task."""
    return tuple(map(str, (example.meta.get("tests"), example.meta.get("entry_point"), example.reference)))


def refuse_none(items: Items) -> None:
    """Refuse a bad item before any is judged, and a job without items."""
    if not check_items(items()):
        raise UserError("there are no responses to judge", "check the file")


def warn_without_reference(items: Items) -> None:
    """Warn on stderr about programs that the program critic cannot compare with a reference
    solution."""
    references = [bool(item.example.reference) for item in items()]
    if lacking := references.count(False):
        counted = f"{lacking} of {len(references)} programs come without a reference solution"
        cure = "a column reference makes the blame smaller"
        print(f"{counted}: faults are found by tests alone ({cure})", file=sys.stderr)


def annotate_samples(
    config: Config, factory: CriticFactory, target: Path, options: AnnotateOptions, job: PaidJob | None
) -> Summary:
    """Have samples of the policy judged, or with `options.anchor` the data set's own drafts."""
    from text2grad.stages.sampling import tested_items
    from text2grad.stages.training import prepare, write_settings

    prepare(config)
    settings, task = config.annotate, factory.run.task()
    train = task.examples(feedback_split(config.task))
    factory.refuse_unfit(train)
    heldout = task.examples("heldout")[: settings.heldout or config.evaluate.limit]
    with nullcontext() if job else factory.open(task) as critic:  # before anything is sampled
        prompts = [factory.admitted(part) for part in (train[: settings.prompts], heldout)]
        items, held = _responses(
            factory.run, task, prompts, settings.samples_per_prompt, config.generation, options
        )
        if job is None:
            assert critic is not None
            write_settings(config, config.run.folder)
            tally = criticise(critic, lambda: items, target, replaces=critic.source.kind)
            heldout_target = target.with_name(HELDOUT_FEEDBACK)
            others = criticise(critic, lambda: held, heldout_target, replaces=critic.source.kind)
            return summary_of(target, tally, others)
    refuse_none(lambda: items)
    check_items(held)
    if options.plan:
        return job.plan(lambda: [*items, *held], target)
    write_settings(config, config.run.folder)
    if settings.run_tests and not options.anchor:
        items, held = tested_items(factory.runner, items), tested_items(factory.runner, held)
    return job.annotate_both(items, held, target)


def _responses(
    run: RunFolder,
    task: Task,
    prompts: Sequence[Sequence[Example]],
    samples: int,
    generation: GenerationSettings,
    options: AnnotateOptions,
) -> list[list[Item]]:
    """The responses to be judged, of training prompts and of held-out ones, at most `options.limit`
    of both.

    Raises:
        UserError: with `options.anchor`, no prompt comes with a draft and feedback on it.
    """
    from text2grad.stages.sampling import drafted_items, planned_items, sampled_items

    counts = samples, min(4, samples)
    if options.anchor:
        parts = list(map(drafted_items, prompts))
        if not parts[0]:
            cure = "task.data: SLF5K has some; leave out --anchor to sample the policy"
            raise UserError(f"no prompt of task {task.name!r} has a draft with feedback", cure)
    elif options.plan:
        parts = [planned_items(*pair, generation.max_new_tokens) for pair in zip(prompts, counts, strict=True)]
    else:
        policy, make = run.load_policy(options.start), get_environment_factory(task)
        pairs = zip(prompts, counts, strict=True)
        parts = [sampled_items(policy, part, count, generation, make) for part, count in pairs]
    return [part[: options.limit] for part in parts]


def criticise(critic: Critic, items: Items, target: Path, replaces: str = "") -> Tally:
    """Have a critic that answers at once judge all items; `replaces` as in `write_feedback`."""
    tally = Tally()
    _, tally.kept = write_feedback(target, tally.counted(_judged(critic, items())), replaces)
    return tally


def _judged(critic: Critic, items: Iterable[Item]) -> Iterator[Feedback]:
    waiting = iter(items)
    while chunk := list(islice(waiting, AT_A_TIME)):
        judgements = get_judgements(critic, [item.example for item in chunk], [item.response for item in chunk])
        for item, judgement in zip(chunk, judgements, strict=True):
            yield Feedback.of(item.example, item.response, judgement, critic.source)


def summary_of(out: Path, tally: Tally, heldout: Tally | None = None) -> JudgedSummary:
    """Return the summary of the stage; its counts include judgements of held-out prompts."""
    others = heldout or Tally()
    ended, outcomes = tally.ended + others.ended, tally.outcomes + others.outcomes
    return JudgedSummary(
        requested=ended.total(),
        ended={state: ended[state] for state in STATES},
        records=tally.ended.total(),
        heldout_records=heldout.ended.total() if heldout else None,
        kept_records=tally.kept,
        spans=tally.spans,
        failed_records=ended.total() - ended["ok"],
        mean_score=mean(tally.scores),
        outcomes=dict(outcomes.most_common()) or None,
        out=str(out),
    )
