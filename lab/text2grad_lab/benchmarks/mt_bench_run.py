"""The command `mt-bench`: rate the two-turn answers of a policy or a file by a judge."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from text2grad.config import Config
from text2grad.durable.state import seed_everything
from text2grad.feedback import Example
from text2grad.json_text import to_json
from text2grad.policy.load import load_frozen
from text2grad.policy.model import Policy
from text2grad.stages import Summary, inlined
from text2grad.stages.evaluate.answers import Judge, refuse_no_judge
from text2grad.stages.run_folder import (
    RunFolder,
    target_name,
    write_atomically,
)
from text2grad.stages.sampling import sample
from text2grad.stages.training import prepare
from text2grad_lab.benchmarks.mt_bench import CATEGORY, TEMPERATURES, TURNS, MTBench, next_turn, read_answers
from text2grad_lab.benchmarks.ratings import means, rate, rating_of, read_prompts

LONGEST_RATING = 2048
"""Maximum tokens of a judgement."""


@dataclass(frozen=True, kw_only=True)
class MTBenchSummary(Summary):
    """Mean ratings (`ratings.means`), the judge, and the files with answers and judgements.

    `failed_records`: turns that the judge did not rate.
    """

    figures: Mapping[str, float] = inlined()
    judge: str
    failed_records: int
    answers: str
    judgements: str


def run_mt_bench(config: Config, target: str) -> MTBenchSummary:
    """Answer the questions of `task.data` with a policy, and rate the answers.

    The answers are written before the judge is called, in the format of FastChat's `model_answer`.
    """
    questions, name = _questions(config), target_name(target)
    prepare(config)
    answers = answer_turns(load_frozen(RunFolder.of(config).policy(target)), questions, config)
    place = _place(config, name, "model_answer")
    rows = [_row(id, turns, name) for id, turns in answers.items()]
    write_atomically(place, "".join(to_json(row) + "\n" for row in rows))
    print(f"answers in {place}: rate them again with --answers FILE", file=sys.stderr)
    return _rated(config, name, questions, answers, place)


def run_mt_bench_answers(config: Config, file: Path) -> MTBenchSummary:
    """Rate a file of FastChat's `model_answer`."""
    RunFolder.of(config).refuse_unwritable()
    questions = _questions(config)
    answers = read_answers(file, questions)
    return _rated(config, file.name.partition(".")[0], questions, answers, file)


def _questions(config: Config) -> list[Example]:
    """Return the questions, after checks of the judge and its prompts."""
    questions = MTBench(config.task).examples("heldout")[: config.evaluate.limit]
    refuse_no_judge(config, "MT-Bench")
    read_prompts(Path(config.task.data))
    return questions


def answer_turns(policy: Policy, questions: Sequence[Example], config: Config) -> dict[str, list[str]]:
    """Return a policy's answers to every turn by question id, sampled at their temperatures."""
    seed_everything(config.run.seed)
    answers: dict[str, list[str]] = {example.id: [] for example in questions}
    for turn in range(max(len(example.meta[TURNS]) for example in questions)):
        for temperature in sorted({_temperature(example) for example in questions}):
            current = [e for e in questions if _temperature(e) == temperature and turn < len(e.meta[TURNS])]
            generation = config.generation.model_copy(update={"temperature": temperature})
            texts = sample(policy, [next_turn(e, answers[e.id]) for e in current], generation)
            for example, (_, text) in zip(current, texts, strict=True):
                answers[example.id].append(text)
    return answers


def _temperature(example: Example) -> float:
    return TEMPERATURES.get(example.meta[CATEGORY], 0.0)


def _rated(
    config: Config, name: str, questions: Sequence[Example], answers: Mapping[str, list[str]], place: Path
) -> MTBenchSummary:
    prompts = read_prompts(Path(config.task.data))
    judge = Judge.of(config, "", lambda answer: rating_of(answer) is not None, LONGEST_RATING)
    with judge.open() as chat:
        rows = [{"model": name, **row} for row in rate(chat, prompts, questions, answers)]
    judgements = _place(config, name, "judgement")
    write_atomically(judgements, "".join(to_json(row) + "\n" for row in rows))
    summary = MTBenchSummary(
        figures=means(rows),
        judge=config.evaluate.judge,
        failed_records=sum(row["score"] < 0 for row in rows),
        answers=str(place),
        judgements=str(judgements),
    )
    answer_rows = [{"id": id, "response": "\n\n".join(turns), "scores": {}} for id, turns in answers.items()]
    RunFolder.of(config).write_results(name, summary.as_dict(), answer_rows)
    return summary


def _place(config: Config, name: str, kind: str) -> Path:
    return RunFolder.of(config).results / f"{name}.{kind}.jsonl"


def _row(id: str, turns: Sequence[str], name: str) -> dict[str, object]:
    return {
        "question_id": int(id) if id.isdigit() else id,
        "answer_id": f"{name}-{id}",
        "model_id": name,
        "choices": [{"index": 0, "turns": list(turns)}],
    }
