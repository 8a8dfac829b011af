"""Improve a policy every night with the files that have arrived in a folder."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from text2grad.config import Config
from text2grad.data.files import list_files
from text2grad.data.records import merge_feedback
from text2grad.errors import EXIT_SOME_RECORDS_FAILED, UserError
from text2grad.feedback import Feedback
from text2grad.json_text import record_json
from text2grad.jsonl import read_jsonl, reading, write_jsonl
from text2grad.settings import with_values
from text2grad.stages import Summary
from text2grad.stages.improve.anchor import anchor_comments
from text2grad.stages.improve.plan import Earlier, Plan, make_plan, with_settings
from text2grad.stages.improve.run import (
    INBOX,
    POLICY,
    copy_policy,
    describe_verdict,
    identity,
    outcome,
    print_plan,
    refuse_other_engine,
    train,
)
from text2grad.stages.improve.source import ImproveOptions, Source, describe, read_source
from text2grad.stages.improve.steps import STATE, Steps, read_state
from text2grad.stages.run_folder import BASE, SFT, RunFolder, read_json, write_json
from text2grad.tasks.base import question_key

LEARNED_RECORDS, POLICIES = "learned.jsonl", "policies"
MAX_POLICIES = 3


@dataclass(frozen=True, kw_only=True)
class InboxSummary(Summary):
    """New files, files that could not be read, and how training ended.

    `better` is None if nothing was trained. `kept` is the folder of the current policy, or `base`.
    `exit_code` is 3 if a file could not be read.
    """

    files: Sequence[str]
    skipped: Sequence[str]
    records: int = 0
    better: bool | None = None
    kept: str = BASE
    minutes: float | None = None
    exit_code: int | None = None


@dataclass
class Inbox:
    """The files that a run has taken from its folder, and its policies (`inbox.json`).

    `model` is the base model. `files` has the names of the files by their digest. `policies` are
    folders in the run, the current one last; only the last `MAX_POLICIES` still exist. `heldout`
    are the questions that no policy was trained on. `is_learned` is true from the moment at which
    a policy becomes the current one until its feedback is stored as learned.
    """

    folder: Path
    model: str = ""
    files: dict[str, str] = field(default_factory=dict)
    policies: list[str] = field(default_factory=list)
    heldout: list[str] = field(default_factory=list)
    is_learned: bool = False

    @staticmethod
    def of(folder: Path) -> Inbox:
        """Read the inbox of a run folder; a new run has an empty one.

        Raises:
            UserError: the run is of other commands, or its state cannot be read.
        """
        has_other_work = (folder / STATE).is_file() or (folder / SFT).exists()
        if has_other_work and not (folder / INBOX).is_file():
            raise UserError(f"{folder} is the run of other commands, not of an inbox", "set another --run.folder")
        file = folder / INBOX
        cure = "restore it from a backup, or set another --run.folder"
        return Inbox(folder, **read_json(file, cure)) if file.is_file() else Inbox(folder)

    @property
    def policy(self) -> Path | None:
        """The folder of the current policy; None for the base model."""
        return self.folder / self.policies[-1] if self.policies else None

    def save(self) -> None:
        """Point the link `policy` to the current policy, and write the state."""
        link = self.folder / POLICY
        if self.policy is None:
            link.unlink(missing_ok=True)
        else:
            link.with_suffix(".new").unlink(missing_ok=True)
            link.with_suffix(".new").symlink_to(self.policies[-1])
            os.replace(link.with_suffix(".new"), link)
        state = asdict(self)
        del state["folder"]
        write_json(self.folder / INBOX, state)

    def remove_old_policies(self) -> None:
        """Remove all policies but the last ones."""
        names = {Path(policy).name for policy in self.policies[-MAX_POLICIES:]}
        for folder in (self.folder / POLICIES).iterdir():
            if folder.name not in names:
                shutil.rmtree(folder)


def run_inbox(config: Config, folder: Path, options: ImproveOptions) -> InboxSummary:
    """Improve the current policy with the new files of a folder.

    Every file is taken once, by its content. Files that cannot be read are named and tried again
    next time. The feedback of all files since the last better policy is learned together.

    Raises:
        UserError: the folder cannot be read, a step failed, or another process runs in the run.
        UsageError: another engine is set.
    """
    from text2grad.durable.guard import lock_folder

    refuse_other_engine(config)
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder", "name the folder in which files of feedback arrive")
    run = RunFolder.of(config)
    run.refuse_unwritable()
    with nullcontext() if options.plan else lock_folder(run.path):
        return _improve(config, run, folder, options)


def _improve(config: Config, run: RunFolder, folder: Path, options: ImproveOptions) -> InboxSummary:
    inbox = Inbox.of(run.path)
    if inbox.policies and inbox.model != config.policy.model:
        problem = f"the policies in {run.path} came from {inbox.model}, not from {config.policy.model}"
        raise UserError(problem, f"--model {inbox.model}, or another --run.folder")
    inbox.model = config.policy.model
    if inbox.is_learned and not options.plan:
        _store_learned(inbox, run)
    sources, skipped = _read_new(config, folder, inbox, options)
    pending, earlier_records = _read_records(run.feedback_file), _read_records(run.path / LEARNED_RECORDS)
    learned = set(map(record_json, earlier_records))  # a file that grows has them again
    for source in sources.values():
        new = [record for record in source.records if record_json(record) not in learned]
        pending = merge_feedback(pending, new)
    if sources and not options.plan:
        write_jsonl(run.feedback_file, pending)
        inbox.files |= {key: source.path.name for key, source in sources.items()}
        inbox.save()
    if options.annotator:
        pending = anchor_comments(config, options.annotator, pending, lambda question: not options.plan)
    summary = InboxSummary(
        files=[source.path.name for source in sources.values()],
        skipped=skipped,
        records=len(pending),
        kept=str(inbox.policy or BASE),
        exit_code=EXIT_SOME_RECORDS_FAILED if skipped else None,
    )
    earlier = Earlier(earlier_records, inbox.heldout)
    plan = _plan(pending, earlier, folder)
    if not plan.steps:
        waiting = f": {len(pending)} records wait for more" if pending else ""
        print(f"{plan.reason}{waiting}", file=sys.stderr)
        return summary
    if inbox.policy is not None:
        config = with_values(config, {"policy.model": str(inbox.policy)})
    config = with_settings(config, plan, pending)
    key = identity(pending, config)
    state = {} if options.restart else read_state(run.path)
    if state.get("identity") == key and state.get("kept") == BASE:
        print(f"no new feedback in {folder}", file=sys.stderr)
        return summary
    expected = print_plan(config, plan, pending)
    if options.plan:
        return summary
    steps = Steps(run.path, key, state.get("identity") != key, expected)
    records = merge_feedback(earlier.records, pending)
    comparison, best = train(config, plan, records, steps, lambda: write_jsonl(run.feedback_file, pending))
    verdict = describe_verdict(comparison, best)
    if comparison.better:
        _keep(inbox, run, best, plan)
        verdict = f"{verdict} as {inbox.policy} (--rollback restores the previous one)"
    print(verdict, file=sys.stderr)
    results = outcome(comparison, best, steps)
    return replace(summary, better=results["better"], kept=str(inbox.policy or BASE), minutes=results["minutes"])


def _read_new(
    config: Config, folder: Path, inbox: Inbox, options: ImproveOptions
) -> tuple[dict[str, Source], list[str]]:
    """Read the new files of a folder; return them by digest, and a line on each unreadable one."""
    sources: dict[str, Source] = {}
    skipped = []
    for path in list_files(folder)[0]:
        try:
            with reading(path):
                key = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
            if key in inbox.files or key in sources:
                continue
            source = read_source(config, path, options)
            if not source.records:
                raise UserError(f"{path} has no comments, ratings or corrections")
        except UserError as error:
            skipped.append(f"{path.name}: {error}")
            print(f"skipped: {error}", file=sys.stderr)
            continue
        sources[key] = source
        for line in describe(source):
            print(line, file=sys.stderr)
    return sources, skipped


def _read_records(file: Path) -> list[Feedback]:
    return list(read_jsonl(file, Feedback)) if file.is_file() else []


def _plan(pending: Sequence[Feedback], earlier: Earlier, folder: Path) -> Plan:
    """Return the plan for the pending records; one without steps if they are too few."""
    if not pending:
        return Plan((), f"no new feedback in {folder}")
    try:
        return make_plan(pending, str(folder), earlier)
    except UserError as error:
        return Plan((), error.problem)


def _keep(inbox: Inbox, run: RunFolder, best: str, plan: Plan) -> None:
    """Make a trained policy the current one; its feedback is not learned again."""
    name = f"{POLICIES}/{len(inbox.policies) + 1}"
    copy_policy(run, best, run.path / name)
    inbox.policies.append(name)
    inbox.heldout = [question_key(example) for example in plan.heldout]
    inbox.is_learned = True
    inbox.save()
    _store_learned(inbox, run)


def _store_learned(inbox: Inbox, run: RunFolder) -> None:
    """Move the feedback that the current policy has learned; after a crash, this is repeated."""
    learned = run.path / LEARNED_RECORDS
    write_jsonl(learned, merge_feedback(_read_records(learned), _read_records(run.feedback_file)))
    run.feedback_file.unlink(missing_ok=True)
    inbox.remove_old_policies()
    inbox.is_learned = False
    inbox.save()


def roll_back(config: Config) -> InboxSummary:
    """Make the previous policy the current one.

    The feedback that the dropped policy was trained on is not learned again.

    Raises:
        UserError: there is no previous policy, or another process runs in the run.
    """
    from text2grad.durable.guard import lock_folder

    run = RunFolder.of(config)
    if not Inbox.of(run.path).policies:
        raise UserError(f"no policy of an inbox in {run.path}", "set --run.folder to the run of `improve --inbox`")
    with lock_folder(run.path):
        inbox = Inbox.of(run.path)
        if inbox.is_learned:
            _store_learned(inbox, run)
        dropped = inbox.policies.pop()
        if inbox.policy is not None and not inbox.policy.is_dir():
            problem = f"{inbox.policy} was removed: the last {MAX_POLICIES} policies are kept"
            raise UserError(problem, "train again from --policy.model, in another --run.folder")
        inbox.save()
    print(f"{dropped} is dropped, {inbox.policy or 'the base model'} is current again", file=sys.stderr)
    return InboxSummary(files=(), skipped=(), kept=str(inbox.policy or BASE))
