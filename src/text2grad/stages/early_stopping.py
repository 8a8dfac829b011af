"""Early stopping of the reward model: on critiques it writes of training prompts that were set apart."""

from __future__ import annotations

import random
from collections.abc import Sequence

from text2grad.align import TokenTable
from text2grad.config import Config
from text2grad.durable.identity import digest_of_texts, flatten
from text2grad.durable.processes import Ranks
from text2grad.errors import UserError
from text2grad.eval.spans import SpanCase, span_report
from text2grad.feedback import Critique, Feedback, record_json
from text2grad.policy.encode import load_tokenizer
from text2grad.policy.model import Policy
from text2grad.stages.critics import critic_over
from text2grad.stages.folder import start_policy
from text2grad.stages.reward_data import fitting, judged_cases
from text2grad.tasks.base import question_of, words_of
from text2grad.train.settings import EarlyStoppingSettings
from text2grad.train.stopping import EarlyStopping


def validation_split(
    records: Sequence[Feedback], settings: EarlyStoppingSettings, seed: int
) -> tuple[list[Feedback], list[Feedback]]:
    """Training records without those of `settings.share` of the prompts, and at most `settings.records` of these.

    Raises:
        UserError: there are not two prompts.
    """
    questions = sorted({words_of(question_of(record)) for record in records})
    if len(questions) < 2:
        raise UserError(
            "one training prompt cannot be split for early stopping", "reward_model.early_stopping null"
        )
    dice = random.Random(seed)
    count = min(len(questions) - 1, max(1, round(settings.share * len(questions))))
    apart = set(dice.sample(questions, count))
    train = [record for record in records if words_of(question_of(record)) not in apart]
    others = [record for record in records if words_of(question_of(record)) in apart]
    readable = [record for record in others if isinstance(record.judgement(), Critique)]
    return train, dice.sample(readable, min(settings.records, len(readable)))


def validation_inputs(config: Config, validation: Sequence[Feedback]) -> dict[str, str]:
    """What early stopping depends on beside the training data, by name; nothing where it is off."""
    settings = config.reward_model
    if settings.early_stopping is None:
        return {}
    return {
        **flatten((), **{"reward_model.early_stopping": settings.early_stopping}),
        **flatten((), **{"reward_model.generation": settings.generation}),
        "reward_model.grounded": settings.grounded,
        "the validation records": digest_of_texts(record_json(record) for record in validation),
    }


def early_stopping(
    config: Config, policy: Policy, validation: Sequence[Feedback], ranks: Ranks
) -> EarlyStopping | None:
    """Measures the policy in training as the critic it becomes, on records that it is not trained on.

    Raises:
        UserError: no validation record can be measured on.
    """
    settings = config.reward_model.early_stopping
    if settings is None:
        return None
    gold = [record for record, _ in fitting(policy, validation, config.reward_model)]
    if not gold:
        cure = "raise reward_model.early_stopping.share, or reward_model.early_stopping null"
        raise UserError("no critique of the validation prompts can be measured on", cure)
    start = start_policy(config)
    table = TokenTable(load_tokenizer(start.model, start.chat_template))
    critic = critic_over(config, policy, "reward model in training")
    return EarlyStopping(policy, settings, lambda: span_f1(judged_cases(critic, gold, table), config), ranks)


def span_f1(cases: Sequence[SpanCase], config: Config) -> float:
    """The mean of the F1 of good tokens and the F1 of poor tokens."""
    rates = span_report(cases, config.credit.membership)
    return (rates["good_f1"] + rates["poor_f1"]) / 2
