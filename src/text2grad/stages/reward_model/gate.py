"""The gate behind `train-reward`: what a reward model says of fresh and of spoiled answers, and the verdict on it.

The verdict is written beside the reward model, and `train` reads it.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch

from text2grad.align import TokenTable
from text2grad.align.trajectory import recorded_tokens
from text2grad.config import Config
from text2grad.critics.damage import spoiled
from text2grad.critics.table import spec_of
from text2grad.data.marks import corrections
from text2grad.errors import UserError
from text2grad.eval.critics.gate import Gate, GateJudgements, Paid, check
from text2grad.eval.critics.spans import SpanCase
from text2grad.feedback import Critic, Example, Feedback, Judgement, judgements_of
from text2grad.jsonl import write_jsonl
from text2grad.policy.encode import encode_prompt
from text2grad.policy.files.tokenizer import load_tokenizer
from text2grad.policy.load import load_frozen
from text2grad.policy.model import Policy
from text2grad.stages.critics import critic_over, load_reward_model, reward_model_folder
from text2grad.stages.reward_model.data import example_of, reward_data
from text2grad.stages.run_folder import start_policy, task_of, write_json
from text2grad.stages.sampling import sample, sample_episodes
from text2grad.tasks.base import environment_of, question_of, words_of

GATE_FILE = "gate.json"
FRESH = "reward_model.fresh.jsonl"
"""In `evaluation`: the critiques of fresh answers of the policy."""
ANSWERS, SPOILED, CORRECTED = 16, 32, 32
"""Fresh answers, spoiled ones, and held-out corrections that are judged at most."""


def gate_file(config: Config) -> Path:
    """Beside the reward model, which is critic.reward_model.folder or this run's own."""
    return reward_model_folder(config).parent / GATE_FILE


def check_reward_model(config: Config, cases: Sequence[SpanCase]) -> Gate:
    """The verdict on the reward model of this run, given its critiques of held-out records.

    Has it judge answers that the policy samples now, spoiled answers, and held-out answers as people corrected
    them. Writes the verdict to `reward_model/gate.json` and the critiques of the fresh answers to
    `evaluation/reward_model.fresh.jsonl`.
    """
    train, heldout = reward_data(config)
    known = _one_of_each_question(train, heldout)
    fresh = _fresh_answers(config, known)
    marred = [Answer.of(each) for each in spoiled(known, SPOILED, config.run.seed)]
    right = [Answer(example_of(each), text) for each, text in corrections(heldout)[:CORRECTED]]
    release()
    critic = critic_over(config, load_reward_model(config), str(reward_model_folder(config)))
    said, said_of_marred, said_of_right = (_judged(critic, each) for each in (fresh, marred, right))
    start = start_policy(config)
    table = TokenTable(load_tokenizer(start.model, start.chat_template))
    own, spoilt = _placed(table, fresh, said), _placed(table, marred, said_of_marred)
    found = check(GateJudgements(cases, own, spoilt, said_of_right), config.credit, config.run.seed)
    answered = zip(fresh, said, strict=True)
    records = [Feedback.of(each.example, each.text, judgement, critic.source) for each, judgement in answered]
    write_jsonl(config.run.folder / "evaluation" / FRESH, records)
    write_json(config.run.folder / "reward_model" / GATE_FILE, asdict(found))
    return found


def release() -> None:
    """Free what is no longer used, so that one model is in memory at a time."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


class Answer(NamedTuple):
    """An answer to be judged, with its token ids where it was sampled here, of an episode those of each turn."""

    example: Example
    text: str
    ids: Sequence[Any] | None = None

    @classmethod
    def of(cls, record: Feedback) -> Answer:
        """That of a record whose response nobody sampled."""
        return cls(example_of(record), record.response)


def _fresh_answers(config: Config, known: Sequence[Feedback]) -> list[Answer]:
    """What the policy answers now to the first `ANSWERS` of these prompts that leave it room.

    Where the task has an environment these are episodes, of the records whose question is one of the task's.
    """
    policy, task = load_frozen(start_policy(config)), task_of(config)
    roomy = [record for record in known if _has_room(policy, record, config)]
    make = environment_of(task)
    if make is None:
        asked = [example_of(record) for record in roomy][:ANSWERS]
        sampled: Sequence[tuple[Sequence[Any], str]] = sample(policy, asked, config.generation) if asked else []
    else:
        examples = (each for split in ("heldout", "train") for each in task.examples(split))
        by_question = {words_of(question_of(each)): each for each in examples}
        found = (by_question.get(words_of(question_of(record))) for record in roomy)
        asked = [example for example in found if example is not None][:ANSWERS]
        sampled = sample_episodes(policy, asked, config.generation, make) if asked else []
    return [Answer(example, text, ids) for example, (ids, text) in zip(asked, sampled, strict=True)]


def _one_of_each_question(train: Sequence[Feedback], heldout: Sequence[Feedback]) -> list[Feedback]:
    """A record of each question, held-out ones first."""
    by_question = {words_of(question_of(record)): record for record in chain(reversed(train), reversed(heldout))}
    return list(reversed(by_question.values()))


def _has_room(policy: Policy, record: Feedback, config: Config) -> bool:
    used = len(encode_prompt(policy.tokenizer, record.prompt)) + config.generation.max_new_tokens
    return policy.context is None or used <= policy.context


def _judged(critic: Critic, answers: Sequence[Answer]) -> list[Judgement]:
    examples, texts = [each.example for each in answers], [each.text for each in answers]
    return judgements_of(critic, examples, texts) if answers else []


def _placed(table: TokenTable, answers: Sequence[Answer], said: Sequence[Judgement]) -> list[Paid]:
    """Each judgement with the tokens of the answer it is about."""
    aligned = [recorded_tokens(table, each.text, each.ids) for each in answers]
    return list(zip(said, aligned, strict=True))


def read_gate(path: Path) -> dict[str, Any] | None:
    """The verdict as it was written; None where there is none.

    Raises:
        UserError: the file is not a verdict.
    """
    if not path.is_file():
        return None
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        for each in (found, found.get("spans_alone") or found):
            each["fit"], each["reasons"] = bool(each["fit"]), [str(reason) for reason in each["reasons"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is not a verdict on a reward model", "text2grad train-reward writes it") from error
    return found


def _pays_verdict(config: Config) -> bool:
    return config.credit.by_score or config.credit.outcome_weight != 0


def verdict_for(config: Config, found: Mapping[str, Any]) -> Mapping[str, Any]:
    """The verdict that counts: the one on spans alone where the verdict of an answer is not paid."""
    alone = found.get("spans_alone")
    return alone if alone and not _pays_verdict(config) else found


def verdict_line(config: Config) -> str:
    """What the gate says of the reward model that policies of this run learn from; empty where there is none."""
    found = read_gate(gate_file(config)) if spec_of(config.critic.kind).kind == "reward_model" else None
    if found is None:
        return ""
    counted = verdict_for(config, found)
    why = "" if counted["fit"] else f": {counted['reasons'][0] if counted['reasons'] else 'no reason given'}"
    return f"the reward model of this run is {'' if counted['fit'] else 'not '}fit to train against{why}"


def refuse_unfit_reward_model(config: Config, tell: bool = True) -> None:
    """Refuse to train against a reward model that failed its gate; with `tell`, say where there is no verdict, or
    where it does not count.

    Raises:
        UserError: it failed, and `critic.reward_model.gate` is true.
    """
    if spec_of(config.critic.kind).kind != "reward_model":
        return
    path = gate_file(config)
    found = read_gate(path)
    if found is None:
        if tell and reward_model_folder(config).is_dir():
            print(f"reward model: not checked (no {path}; train-reward writes it)", file=sys.stderr)
        return
    counted = verdict_for(config, found)
    unmeasured = counted.get("figures", {}).get("pays_verdict") is False and _pays_verdict(config)
    if counted["fit"] and not unmeasured:
        return
    if counted["fit"]:
        why = "it was checked with credit.outcome_weight 0, and its verdict, which is paid now, by nobody"
        counted = {**counted, "reasons": [why], "spans_alone": counted}
        found = counted
    more = f", and {len(counted['reasons']) - 1} more in {path}" if len(counted["reasons"]) > 1 else ""
    problem = f"the reward model is not fit to train against: {counted['reasons'][0]}{more}"
    if config.critic.reward_model.gate:
        raise UserError(problem, _instead(config, found, counted))
    if tell:
        print(f"{problem}; trained against it all the same (critic.reward_model.gate false)", file=sys.stderr)


def _instead(config: Config, found: Mapping[str, Any], counted: Mapping[str, Any]) -> str:
    """What can be done with what there is, the surest first."""
    alone, records = found.get("spans_alone"), config.run.folder / "feedback.jsonl"
    spans = "--credit.outcome_weight 0 trains on its spans alone, which are fit"
    return ", or ".join(
        [
            *([spans] if alone and alone["fit"] and counted is found else []),
            *([f"train --offline {records} learns from the remarks without it"] if records.is_file() else []),
            "more critiques and train-reward again",
            "--critic.reward_model.gate false",
        ]
    )
