"""`train-reward --pairs` and `train --pairs`: a scalar reward model, and DPO, on preference pairs."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from text2grad.config import Config
from text2grad.data.export import Pairs
from text2grad.data.files import hub_data
from text2grad.data.preference import read_pairs
from text2grad.durable.run import ResumeMode
from text2grad.errors import UserError
from text2grad.eval.critics.preference import preference_report
from text2grad.feedback import Preference
from text2grad.policy.encode import encode_target
from text2grad.policy.heads.model import ScalarModel
from text2grad.policy.load import load_frozen, load_policy
from text2grad.policy.model import Policy
from text2grad.policy.settings import PolicySettings
from text2grad.stages.judge.critics import SCALE_FILE
from text2grad.stages.learn.gate import release
from text2grad.stages.learn.reward_data import SplitData, splits_of_task
from text2grad.stages.run.policies import start_policy
from text2grad.stages.run.results import write_json
from text2grad.stages.run.settle import facts_of_preferences
from text2grad.stages.run.summary import Summary, inlined
from text2grad.stages.run.training import training
from text2grad.tasks.base import question_of, split_of, words_of
from text2grad.train.objectives.head_model import train_scalar_model
from text2grad.train.objectives.preference import encode_preferences, read_preferences, train_dpo

ANSWERS_TO_STANDARDISE = 2000
"""Training answers whose scores give mean and spread; more change neither."""


@dataclass(frozen=True, kw_only=True)
class PreferenceSummary(Summary):
    """Records that were read, pairs trained on and held out, records that gave none by the reason, last metrics of
    the training, figures on held-out pairs (`heldout_*`, `eval.critics`), and the folder of the policy."""

    pairs: int
    trained_on: int
    heldout: int
    left_out: Mapping[str, int] | None = None
    metrics: Mapping[str, float] = inlined()
    figures: Mapping[str, float] = inlined()
    out: str


def run_train_scalar_model(config: Config, data: str, resume: ResumeMode = "auto") -> PreferenceSummary:
    """Train a scalar reward model on preference pairs; writes `scalar_model/policy` and its figures."""
    with training(config, "scalar_model", "scalar_model", resume) as stage:
        with stage.preparing():
            policy, pairs = policy_and_pairs(config, data)
        run = stage.settle(policy, facts_of_preferences(policy, pairs.train))
        with run.begin() as options:
            metrics = train_scalar_model(policy, pairs.train, run.config.scalar_model.training, options)
            del policy
            release()  # what was trained is gone before the model that was written is loaded
            figures = (
                standardise_and_measure(run.config, stage.place / "policy", pairs) if stage.ranks.first else {}
            )
    return summary_of(pairs, metrics, figures, stage.place)


def run_train_dpo(config: Config, name: str, data: str, resume: ResumeMode = "auto") -> PreferenceSummary:
    """DPO of the SFT policy on preference pairs; writes `ppo/<name>`, or resumes an unfinished one."""
    with training(config, "dpo", f"ppo/{name}", resume) as stage:
        with stage.preparing():
            policy, pairs = policy_and_pairs(config, data)
        run = stage.settle(policy, facts_of_preferences(policy, pairs.train))
        with run.begin(with_run=True) as options:
            metrics = train_dpo(policy, pairs.train, run.config.dpo, options)
            figures = measure_dpo(run.config, policy, pairs.heldout)
        if stage.ranks.first:
            write_figures(config, name, figures)
    return summary_of(pairs, metrics, figures, stage.place)


def policy_and_pairs(config: Config, data: str) -> tuple[Policy, SplitData[Preference]]:
    """The policy to train and the pairs that fit it. The pairs are read first: a bad file costs nothing."""
    pairs = preference_data(config, data)
    policy = load_policy(start_policy(config))

    def tokens(some: Sequence[Preference]) -> list[int]:
        return [len(each.whole) for each in encode_preferences(policy, some)]

    return policy, pairs.fitting(tokens, policy.context, "pairs")


def preference_data(config: Config, data: str) -> SplitData[Preference]:
    """The pairs of a file or hub data set, split by question, by the task's own rule.

    Where held-out pairs come beside them (`pairs_heldout.jsonl` beside `pairs.jsonl`, the split that a data set
    comes with), these are held out, else a share of the questions (`task.heldout_share`); with `task.split` or
    `task.heldout_data` the held-out questions of the task's data too.
    """
    found, beside = read_pairs(data), heldout_beside(data)
    known = splits_of_task(config)
    out = {_words(pair) for pair in beside.pairs} if beside else set()
    for pair in found.pairs:
        rule = "train" if beside else split_of(question_of(pair), config.task)
        if known.get(_words(pair), rule) == "heldout":
            out.add(_words(pair))
    train = [pair for pair in found.pairs if _words(pair) not in out]
    heldout = [pair for pair in found.pairs if _words(pair) in out] + (beside.pairs if beside else [])
    if not train:
        raise UserError(f"{data}: all {len(found.pairs)} pairs are held out", "lower task.heldout_share")
    return SplitData(train, heldout, Counter(found.left_out))


def heldout_beside(data: str) -> Pairs | None:
    """The held-out pairs that come with a file or hub data set."""
    path = Path(data)
    name, dot, endings = path.name.partition(".")
    beside = path.with_name(f"{name}_heldout{dot}{endings}")
    if path.exists():
        return read_pairs(str(beside)) if beside.is_file() and beside.stat().st_size else None
    return read_pairs(data, split) if (split := hub_data(data).heldout) else None


def standardise_and_measure(config: Config, folder: Path, pairs: SplitData[Preference]) -> dict[str, float]:
    """Write the scale of a new scalar model's scores beside it; its figures on the held-out pairs."""
    settings = PolicySettings(model=str(folder), dtype=config.policy.dtype, device=config.policy.device)
    model = load_frozen(settings)
    scorer = ScalarModel(model)
    seen = [score for side in scored(scorer, pairs.train[: ANSWERS_TO_STANDARDISE // 2]) for score in side]
    spread = statistics.pstdev(seen)
    if not spread:
        raise UserError("the scalar model scores all answers alike", "raise scalar_model.training.lr or epochs")
    write_json(folder / SCALE_FILE, {"mean": statistics.fmean(seen), "spread": spread})
    if not pairs.heldout:
        return {}
    figures = measured(config, model, pairs.heldout, *scored(scorer, pairs.heldout))
    write_figures(config, "scalar_model", figures)
    return figures


def scored(scorer: ScalarModel, pairs: Sequence[Preference]) -> tuple[list[float], list[float]]:
    """The scores of the chosen answers and of the rejected ones, which fit the model."""
    prompts = [pair.prompt for pair in pairs]
    sides = ([pair.chosen for pair in pairs], [pair.rejected for pair in pairs])
    chosen, rejected = ([float(score or 0.0) for score in scorer.scores(prompts, side)] for side in sides)
    return chosen, rejected


def measure_dpo(config: Config, policy: Policy, heldout: Sequence[Preference]) -> dict[str, float]:
    """The figures of the rewards that a policy implies, on held-out pairs, and its KL to the reference there."""
    if not heldout:
        return {}
    encoded = encode_preferences(policy, heldout)
    settings = config.dpo
    reading = read_preferences(policy, encoded, settings.beta, settings.training.micro_batch_size)
    return measured(config, policy, heldout, reading.chosen, reading.rejected) | {"kl": reading.kl}


def measured(
    config: Config, model: Policy, pairs: Sequence[Preference], chosen: Sequence[float], rejected: Sequence[float]
) -> dict[str, float]:
    """`preference_report` of the rewards of pairs, with lengths in the model's own tokens."""
    lengths = [
        (len(encode_target(model.tokenizer, pair.chosen)), len(encode_target(model.tokenizer, pair.rejected)))
        for pair in pairs
    ]
    return preference_report(chosen, rejected, lengths, [_words(pair) for pair in pairs], config.run.seed)


def write_figures(config: Config, name: str, figures: Mapping[str, float]) -> None:
    """What was measured on held-out pairs, for the report."""
    if figures:
        write_json(config.run.folder / "evaluation" / "preferences" / f"{name}.json", figures)


def summary_of(
    pairs: SplitData[Preference],
    metrics: Mapping[str, float],
    figures: Mapping[str, float],
    place: Path,
) -> PreferenceSummary:
    """What was read, trained and measured."""
    return PreferenceSummary(
        pairs=pairs.records,
        trained_on=len(pairs.train),
        heldout=len(pairs.heldout),
        left_out=dict(pairs.left_out) or None,
        metrics=metrics,
        figures={f"heldout_{name}": value for name, value in figures.items() if name != "pairs"},
        out=str(place / "policy"),
    )


def _words(pair: Preference) -> str:
    return words_of(question_of(pair))
