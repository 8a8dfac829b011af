"""`annotate`: any critic over any responses, from a file or from the policy. A file needs no torch of itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

from text2grad.config import Config, CriticKind
from text2grad.critics.program import preference_pairs
from text2grad.errors import UsageError, UserError
from text2grad.feedback import Feedback, read_jsonl, refuse_folder, write_jsonl
from text2grad.stages.critics import make_critic, refuse_unfit, runner_of
from text2grad.stages.items import Item, Items, check_items, read_items
from text2grad.stages.paid import AnnotateOptions, annotate_paid, left, plan_for, refuse_endpoint_options
from text2grad.stages.records import PairsSummary, criticise
from text2grad.stages.summary import Summary
from text2grad.tasks.base import feedback_split


def run_annotate(
    config: Config,
    responses: Path | None = None,
    out: Path | None = None,
    pairs: bool = False,
    options: AnnotateOptions = AnnotateOptions(),  # noqa: B008 - frozen
) -> Summary:
    """Have responses judged: those of the file `responses`, else the policy's own, which are sampled first.

    Writes `out` (by default `feedback.jsonl` of the run) and, of held-out prompts,
    `feedback_heldout.jsonl` beside it, so that a reward model can be measured on responses to
    prompts it has never seen. With `pairs`, passing and failing programs of one question go into
    `pairs.jsonl`, those of held-out prompts into `pairs_heldout.jsonl`.

    Raises:
        UsageError: an option that is of no use with this critic.
        UserError: an item is bad (before any is judged), or a mistake that fails every critique.
    """
    kind = config.annotate.critic or config.critic.kind
    if out is not None:
        refuse_folder(out)
    if kind != "prompted":
        refuse_endpoint_options(options)
    if pairs:
        refuse_pairs(config, responses)
    if options.start and (responses is not None or options.anchor):
        raise UsageError("--from names the policy that answers, and none is sampled", "leave out --from")
    if options.budget_usd is None:
        options = replace(options, budget_usd=config.critic.prompted.budget_usd)
    if responses is None:
        return annotate_samples(config, kind, out, pairs, options)
    target = out or config.run.folder / "feedback.jsonl"

    def items() -> Iterator[Item]:
        return islice(read_items(responses, options.anchor), options.limit)

    check(config, items)
    if options.plan:
        return plan_for(config, items, target, options)
    if kind == "prompted":
        return annotate_paid(config, items, target, options)
    if kind == "reward_model":
        from text2grad.stages.folder import prepare

        prepare(config)
    with runner_of(config) as runner:
        return criticise(make_critic(config, kind, None, runner), items, target).summary(target)


def check(config: Config, items: Items) -> None:
    """Refuse a bad item before any is judged, and a job without items."""
    if not check_items(items(), config.annotate.max_characters):
        raise UserError("there are no responses to judge", "check the file")


def annotate_samples(
    config: Config, kind: CriticKind, out: Path | None, pairs: bool, options: AnnotateOptions
) -> Summary:
    """Have the critic `kind` judge what the policy says, or with `options.anchor` the data set's own drafts."""
    from text2grad.stages.folder import note_settings, prepare, task_of
    from text2grad.stages.sampled import sources_of

    folder = prepare(config)
    task, target = task_of(config), out or folder / "feedback.jsonl"
    heldout = target.with_name("feedback_heldout.jsonl")
    refuse_unfit(kind, task.examples(feedback_split(config.task)))
    with runner_of(config) as runner:
        critic = None if kind == "prompted" else make_critic(config, kind, task, runner)
        tested = runner if critic is None and config.annotate.run_tests else None
        items, held = sources_of(config, task, tested, options)
        if options.plan:
            check(config, lambda: [*items, *held])
            return plan_for(config, lambda: [*items, *held], target, options)
        note_settings(config, folder)
        if critic is None:
            return _paid_samples(config, (items, target), (held, heldout), options)
        tally = criticise(critic, lambda: items, target, replaces=critic.source.kind)
        others = criticise(critic, lambda: held, heldout, replaces=critic.source.kind)
    return tally.summary(target, others, write_pairs(config, target, heldout) if pairs else None)


def _paid_samples(
    config: Config, train: tuple[list[Item], Path], held: tuple[list[Item], Path], options: AnnotateOptions
) -> Summary:
    """Both files of a run out of one budget."""
    (items, target), (others, heldout) = train, held
    check(config, lambda: items)
    check_items(others, config.annotate.max_characters)
    summary = annotate_paid(config, lambda: items, target, options)
    if not others:
        return summary
    rest = left(options.budget_usd, summary.spent + (summary.canaries.get("canaries_usd") or 0.0))
    again = replace(options, budget_usd=rest, canaries=False, add_requests=True)
    return summary.with_heldout(annotate_paid(config, lambda: others, heldout, again))


def refuse_pairs(config: Config, responses: Path | None = None) -> None:
    """Refuse `--pairs` without programs that are run, or with one answer to a question."""
    if responses is not None:
        raise UsageError("--pairs needs programs of the policy's own", "leave out --responses")
    if (config.annotate.critic or config.critic.kind) != "program":
        raise UsageError("--pairs needs the verdict of tests", "set --annotate.critic program")
    if config.annotate.samples_per_prompt < 2:
        raise UsageError("--pairs needs several answers to a prompt", "set --annotate.samples_per_prompt 8")


def write_pairs(config: Config, source: Path, heldout: Path) -> PairsSummary:
    """Chosen and rejected programs of the same question, for DPO or a pairwise reward model: `pairs.jsonl`.

    Those of held-out questions go into `pairs_heldout.jsonl`.
    """
    path, beside = (config.run.folder / f"{name}.jsonl" for name in ("pairs", "pairs_heldout"))
    unpaired, made = _write_pairs(config, source, path)
    held = _write_pairs(config, heldout, beside)[1] if heldout.is_file() else None
    return PairsSummary(pairs=made, heldout_pairs=held, unpaired_prompts=unpaired, pairs_out=str(path))


def _write_pairs(config: Config, source: Path, path: Path) -> tuple[int, int]:
    """Questions of a feedback file without a pair, and how many pairs were written."""
    records = [record for record in read_jsonl(source, Feedback) if record.source.kind == "program"]
    made = list(preference_pairs(records, config.annotate.pairs_per_prompt))
    write_jsonl(path, made)
    return len({record.id for record in records}) - len({pair.id for pair in made}), len(made)
