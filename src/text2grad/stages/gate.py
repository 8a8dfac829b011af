"""The gate behind `train-reward`: what a reward model says of fresh and of spoiled answers, and the verdict on it.

The verdict is written beside the reward model, and `train` reads it.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch

from text2grad.align import TokenTable
from text2grad.config import Config
from text2grad.critics.damage import spoiled
from text2grad.errors import UserError
from text2grad.eval.gate import Gate, Paid, gate, gate_figures
from text2grad.eval.spans import SpanCase
from text2grad.feedback import Critic, Example, Feedback, Judgement, judgements_of, write_jsonl
from text2grad.policy.encode import encode_prompt, load_tokenizer
from text2grad.policy.load import load_frozen
from text2grad.policy.model import Policy
from text2grad.stages.critics import critic_over, load_reward_model, reward_model_folder
from text2grad.stages.folder import start_policy
from text2grad.stages.results import write_json
from text2grad.stages.reward_data import example_of, reward_data
from text2grad.stages.sampling import sample
from text2grad.tasks.base import question_of, words_of

GATE_FILE = "gate.json"
FRESH = "reward_model.fresh.jsonl"
"""In `evaluation`: the critiques of fresh answers of the policy."""
ANSWERS, SPOILED = 16, 32
"""Fresh answers, and spoiled ones, that are judged at most."""


def gate_file(config: Config) -> Path:
    """Beside the reward model, which is critic.reward_model.folder or this run's own."""
    return reward_model_folder(config).parent / GATE_FILE


def check_reward_model(config: Config, cases: Sequence[SpanCase]) -> Gate:
    """The verdict on the reward model of this run, given its critiques of held-out records.

    Has it judge answers that the policy samples now, and spoiled answers. Writes the verdict to
    `reward_model/gate.json` and the critiques of the fresh answers to `evaluation/reward_model.fresh.jsonl`.
    """
    known = _one_of_each_question(config)
    fresh = _fresh_answers(config, known)
    marred = [Answer.of(each) for each in spoiled(known, SPOILED, config.run.seed)]
    release()
    critic = critic_over(config, load_reward_model(config), str(reward_model_folder(config)))
    said, said_of_marred = _judged(critic, fresh), _judged(critic, marred)
    start = start_policy(config)
    table = TokenTable(load_tokenizer(start.model, start.chat_template))
    own, spoilt = _placed(table, fresh, said), _placed(table, marred, said_of_marred)
    found = gate(gate_figures(cases, own, spoilt, config.credit, config.run.seed))
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
    """An answer to be judged, with its token ids where it was sampled here."""

    example: Example
    text: str
    ids: Sequence[int] | None = None

    @classmethod
    def of(cls, record: Feedback) -> Answer:
        """That of a record whose response nobody sampled."""
        return cls(example_of(record), record.response)


def _fresh_answers(config: Config, known: Sequence[Feedback]) -> list[Answer]:
    """What the policy answers now to the first `ANSWERS` of these prompts that leave it room."""
    policy = load_frozen(start_policy(config))
    asked = [example_of(record) for record in known if _has_room(policy, record, config)][:ANSWERS]
    sampled = sample(policy, asked, config.generation) if asked else []
    return [Answer(example, text, ids) for example, (ids, text) in zip(asked, sampled, strict=True)]


def _one_of_each_question(config: Config) -> list[Feedback]:
    """A record of each question, held-out ones first."""
    train, heldout = reward_data(config)
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
    aligned = [table.align(each.ids) if each.ids else table.align_text(each.text) for each in answers]
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
        found["fit"], found["reasons"] = bool(found["fit"]), [str(each) for each in found["reasons"]]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is not a verdict on a reward model", "text2grad train-reward writes it") from error
    return found


def refuse_unfit_reward_model(config: Config, tell: bool = True) -> None:
    """Refuse to train against a reward model that failed its gate; with `tell`, say where there is no verdict.

    Raises:
        UserError: it failed, and `critic.reward_model.gate` is true.
    """
    if config.critic.kind != "reward_model":
        return
    path = gate_file(config)
    found = read_gate(path)
    if found is None:
        if tell and reward_model_folder(config).is_dir():
            print(f"reward model: not checked (no {path}; train-reward writes it)", file=sys.stderr)
        return
    if found["fit"] or not config.critic.reward_model.gate:
        return
    more = f", and {len(found['reasons']) - 1} more in {path}" if len(found["reasons"]) > 1 else ""
    raise UserError(
        f"the reward model is not fit to train against: {found['reasons'][0]}{more}",
        "more critiques and train-reward again, or --critic.reward_model.gate false",
    )
