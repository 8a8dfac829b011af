"""`annotate`: have any critic judge responses from a file or from the policy.

Judging a file does not import torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

from text2grad.chat.journal import FAILURE_STATES, STATES
from text2grad.config import Config
from text2grad.critics.program import outcome_counts
from text2grad.data.records import write_feedback
from text2grad.data.responses import Item, check_items, read_items
from text2grad.errors import UsageError, UserError
from text2grad.eval.metrics import mean
from text2grad.feedback import Critic, Example, Feedback, get_judgements
from text2grad.jsonl import refuse_folder
from text2grad.policy.settings import GenerationSettings
from text2grad.stages.critics import CriticFactory, critic_factory, prompt_name
from text2grad.stages.paid import AnnotateOptions, PaidJob, refuse_endpoint_options
from text2grad.stages.run_folder import HELDOUT_FEEDBACK, RunFolder
from text2grad.tasks.base import Task, feedback_split, get_environment_factory


def run_annotate(
    config: Config,
    responses: Path | None = None,
    out: Path | None = None,
    options: AnnotateOptions = AnnotateOptions(),  # noqa: B008 - frozen
) -> dict[str, Any]:
    """Have responses judged: those in the file `responses`, else new samples of the policy.

    Writes `out` (default: `feedback.jsonl` of the run). Records of held-out prompts go to
    `feedback_heldout.jsonl` in the same folder, for measuring a reward model on unseen prompts.

    Raises:
        UsageError: options contradict each other, or do not apply to this critic.
        UserError: an item is invalid (raised before any is judged), or every critique fails.
    """
    kind, target = config.annotate.critic or config.critic.kind, out or config.run.folder / "feedback.jsonl"
    if out is not None:
        refuse_folder(out)
    if kind != "prompted":
        refuse_endpoint_options(options)
    if options.start and (responses is not None or options.anchor):
        raise UsageError("--from selects the policy to sample, but nothing is sampled", "remove --from")
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
) -> dict[str, Any]:
    """Have the responses in a file judged by a paid job, or by the critic of the factory."""
    write = factory.run.turn_writer()
    items = list(islice(read_items(responses, options.anchor, write, options.sheet), options.limit))
    refuse_invalid(items)
    if options.anchor and not any(item.comment for item in items):
        problem = f"no comment of a person in {responses} lacks marked words"
        raise UserError(problem, "remove --anchor to judge the responses")
    if job is not None:
        return job.plan(items, target) if options.plan else job.annotate(items, target)
    if factory.kind == "reward_model":
        from text2grad.stages.training import prepare

        prepare(config)
    if factory.kind == "program":
        items = _admitted_items(factory, items)
    with factory.open() as critic:
        return make_summary(target, *criticise(critic, items, target))


def _admitted_items(factory: CriticFactory, items: Sequence[Item]) -> list[Item]:
    """Return the responses to tasks whose tests may judge a program."""

    def key(example: Example) -> tuple[str, ...]:  # responses with different ids may share a task
        return tuple(map(str, (example.meta.get("tests"), example.meta.get("entry_point"), example.reference)))

    tasks = {key(item.example): item.example for item in items}
    keys = set(map(key, factory.admitted(list(tasks.values()))))
    return [item for item in items if key(item.example) in keys]


def refuse_invalid(items: Sequence[Item]) -> None:
    """Refuse invalid items before any is judged, and a job without items."""
    check_items(items)
    if not items:
        raise UserError("there are no responses to judge", "check the file")


def annotate_samples(
    config: Config, factory: CriticFactory, target: Path, options: AnnotateOptions, job: PaidJob | None
) -> dict[str, Any]:
    """Have samples of the policy judged, or with `options.anchor` the drafts of the data set."""
    from text2grad.stages.sampling import tested_items
    from text2grad.stages.training import prepare, write_settings

    prepare(config)
    settings, task = config.annotate, factory.run.task()
    train = task.examples(feedback_split(config.task))
    factory.refuse_unfit(train)
    heldout = task.examples("heldout")[: settings.heldout or config.evaluate.limit]
    with nullcontext() if job else factory.open(task) as critic:  # before anything is sampled
        prompts = [factory.admitted(part) for part in (train[: settings.prompts], heldout)]
        items, heldout_items = _responses(
            factory.run, task, prompts, settings.samples_per_prompt, config.generation, options
        )
        if job is None:
            assert critic is not None
            write_settings(config, config.run.folder)
            judged = criticise(critic, items, target, replaces=critic.source.kind)
            heldout_target = target.with_name(HELDOUT_FEEDBACK)
            heldout_records, _ = criticise(critic, heldout_items, heldout_target, replaces=critic.source.kind)
            return make_summary(target, *judged, heldout_records)
    refuse_invalid(items)
    check_items(heldout_items)
    if options.plan:
        return job.plan([*items, *heldout_items], target)
    write_settings(config, config.run.folder)
    if settings.run_tests and not options.anchor:
        items, heldout_items = tested_items(factory.runner, items), tested_items(factory.runner, heldout_items)
    return job.annotate(items, target, heldout_items)


def _responses(
    run: RunFolder,
    task: Task,
    prompts: Sequence[Sequence[Example]],
    samples: int,
    generation: GenerationSettings,
    options: AnnotateOptions,
) -> list[list[Item]]:
    """Return the responses to judge, of training and of held-out prompts.

    Each of the two lists has at most `options.limit` items.

    Raises:
        UserError: with `options.anchor`, no prompt has a draft with feedback.
    """
    from text2grad.stages.sampling import drafted_items, planned_items, sampled_items

    counts = samples, min(4, samples)
    if options.anchor:
        parts = list(map(drafted_items, prompts))
        if not parts[0]:
            cure = "SLF5K has drafts (task.data); remove --anchor to sample the policy"
            raise UserError(f"no prompt of task {task.name!r} has a draft with feedback", cure)
    elif options.plan:
        parts = [planned_items(*pair, generation.max_new_tokens) for pair in zip(prompts, counts, strict=True)]
    else:
        policy, make = run.load_policy(options.start), get_environment_factory(task)
        pairs = zip(prompts, counts, strict=True)
        parts = [sampled_items(policy, part, count, generation, make) for part, count in pairs]
    return [part[: options.limit] for part in parts]


def criticise(
    critic: Critic, items: Sequence[Item], target: Path, replaces: str = ""
) -> tuple[list[Feedback], int]:
    """Have a critic judge all items, and write the records; see `write_feedback`.

    Returns:
        The records, and the number of others that stay in the file.
    """
    judgements = get_judgements(critic, [item.example for item in items], [item.response for item in items])
    records = [
        Feedback.of(item.example, item.response, judgement, critic.source)
        for item, judgement in zip(items, judgements, strict=True)
    ]
    return records, write_feedback(target, records, replaces)


def make_summary(
    out: Path, records: Sequence[Feedback], unchanged: int, heldout: Sequence[Feedback] | None = None
) -> dict[str, Any]:
    """Return counts of judgements, those of held-out prompts included, and of records written."""
    judged = [*records, *(heldout or ())]
    ended = Counter(FAILURE_STATES[record.error.kind] if record.error else "ok" for record in judged)
    outcomes = outcome_counts(judged)
    return {
        "requested": len(judged),
        **{state: ended[state] for state in STATES},
        "usd": 0.0,
        "records": len(records),
        **({} if heldout is None else {"heldout_records": len(heldout)}),
        "kept_records": unchanged,
        "spans": sum(len(record.spans) for record in records),
        "failed_records": len(judged) - ended["ok"],
        "mean_score": mean([record.score for record in records if record.score is not None]),
        **({"outcomes": outcomes} if outcomes else {}),
        "out": str(out),
    }
