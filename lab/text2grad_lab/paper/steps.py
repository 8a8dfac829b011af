"""The paper's tables and figures as one list of commands, for a GPU and a key of a chat model.

The list is steps.yaml; lab/paper.md says how exact it is. A finished step is recorded in
`runs/paper/` with a digest of its command and is not run again; an interrupted one resumes. Missing
GPUs, keys and files are reported before anything runs.

Hours are estimates: PPO takes the preset's steps times the minutes of the paper's Table 13, other
steps their tokens divided by the rates below.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

from text2grad.chat.prices import read_prices
from text2grad.errors import EXIT_SOME_RECORDS_FAILED, UserError
from text2grad.strict_yaml import parse_yaml
from text2grad_lab.paper import GROUPS

LIST = Path(__file__).with_suffix(".yaml")
NOTES = Path("runs/paper")
PAPER_GPUS = 8
TRAINED_A_SECOND, WRITTEN_A_SECOND = 2_000, 1_000
"""Tokens per second of one 80 GB GPU with 8 billion parameters, in training with adapters (a fifth
of an A100's bfloat16 peak at 4 FLOPs per weight and token) and in sampling 64 answers at a time.
Assumed, not measured."""
CHAT_MODEL = "gpt-4o"
LAB = (
    *("refine", "imitate", "reflect", "train-units", "train-dpo", "train-scalar"),
    *("alpaca", "choices", "mt-bench", "samples", "texts"),
)
"""Commands of the lab: `python -m text2grad_lab`."""
ACCEPTED_CODES = (0, EXIT_SOME_RECORDS_FAILED)
"""Exit codes after which the next step runs."""
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Step:
    """One command on a data set, and its requirements.

    `gpu_hours`: on one GPU. `chat_usd`: price of the chat model. `needs`: `gpu`, `key`, or a file.
    """

    name: str
    data: str
    shows: str
    words: tuple[str, ...]
    gpu_hours: float
    chat_usd: float
    needs: tuple[str, ...]

    @property
    def group(self) -> str:
        return self.name.partition("/")[0]


# The list


def read_list() -> dict[str, Any]:
    """Return the tables of steps.yaml."""
    tables: dict[str, Any] = parse_yaml(LIST.read_text(encoding="utf-8"))
    return tables


def steps() -> list[Step]:
    """Return all steps by part of the list, each part in the order of the file."""
    tables = read_list()
    all_steps = [step_of(row, facts) for row in tables["steps"] for facts in combinations(row["over"], tables)]
    return sorted(all_steps, key=lambda step: GROUPS.index(step.group))


def combinations(over: Mapping[str, Sequence[str]], tables: Row) -> Iterator[dict[str, Any]]:
    """Yield the fields of every combination of rows, with their names."""
    for names in product(*over.values()):
        facts: dict[str, Any] = dict(zip(over, names, strict=True))
        for kind, name in facts.copy().items():
            facts |= tables.get(kind, {}).get(name, {})
        yield facts


def step_of(row: Row, facts: dict[str, Any]) -> Step:
    """Return the step of a row with the fields of one combination."""
    if "measured" in facts:
        facts = facts | {"measured": facts["measured"].format_map(facts)}
    gpu_hours = trained_hours(value(row, "trained", facts)) + written_hours(value(row, "written", facts))
    token_counts = value(row, "asked", facts) or (0, 0, 0)
    files = value(row, "files", facts) or ()
    gpu, key = (("gpu",) if row.get("gpu", True) else ()), (("key",) if token_counts[0] else ())
    return Step(
        row["name"].format_map(facts),
        facts["data"],
        row["shows"].format_map(facts),
        tuple(shlex.split(row["words"].format_map(facts))),
        gpu_hours + ppo_hours(*(value(row, "ppo", facts) or (0, 0))),
        chat_usd(*token_counts),
        (*gpu, *key, *files),
    )


def value(row: Row, name: str, facts: Row) -> Any:
    """Return a cost in a row: a number, or a field of the combination; default 0."""
    cell = row.get(name, 0)
    return facts[cell] if isinstance(cell, str) else cell


def trained_hours(millions: float) -> float:
    return millions * 1e6 / TRAINED_A_SECOND / 3600


def written_hours(millions: float) -> float:
    return millions * 1e6 / WRITTEN_A_SECOND / 3600


def ppo_hours(count: int, minutes: float) -> float:
    """Return the GPU hours of `count` steps that take `minutes` each on the paper's eight GPUs."""
    return count * minutes / 60 * PAPER_GPUS


def chat_usd(questions: int, input_tokens: int, output_tokens: int) -> float:
    """Return the price in USD of questions with these tokens each."""
    return questions * read_prices(None)[CHAT_MODEL].cost(
        {"prompt_tokens": input_tokens, "completion_tokens": output_tokens}
    )


# The plan


def print_plan(selected: Sequence[Step], gpu_usd: float) -> dict[str, int]:
    """Print each step with its command, and the totals of each part; return the overall totals."""
    for step in selected:
        needs = ", ".join(step.needs) or "nothing"
        print(f"{step.name} [{step.shows}] {step.gpu_hours:.1f} h, chat ${step.chat_usd:.2f}, needs {needs}")
        print(f"    {shlex.join(words_of(step))}")
    print()
    for line in table(selected, gpu_usd):
        print(line)
    return totals(selected, gpu_usd)


def table(selected: Sequence[Step], gpu_usd: float) -> Iterator[str]:
    """Yield the totals of each part of the list as a Markdown table."""
    yield "| part | steps | GPU hours | GPU $ | chat $ |"
    yield "| --- | --- | --- | --- | --- |"
    for name in (*GROUPS, "all"):
        figures = totals([step for step in selected if name in (step.group, "all")], gpu_usd)
        if figures["steps"]:
            yield f"| {name} | " + " | ".join(f"{figure:,}" for figure in figures.values()) + " |"


def totals(selected: Iterable[Step], gpu_usd: float) -> dict[str, int]:
    """Return the number of steps, the GPU hours and the prices."""
    selected = list(selected)
    hours = sum(step.gpu_hours for step in selected)
    return {
        "steps": len(selected),
        "gpu_hours": round(hours),
        "gpu_usd": round(hours * gpu_usd),
        "chat_usd": round(sum(step.chat_usd for step in selected)),
    }


def words_of(step: Step) -> list[str]:
    """Return the command line of a step."""
    program = [sys.executable, "-m", "text2grad_lab"] if step.words[0] in LAB else ["text2grad"]
    return [*program, *step.words]


# The run


def run_paper(selected: Sequence[Step]) -> dict[str, int]:
    """Run the steps that are not done yet, in order.

    Raises:
        UserError: a GPU, the key or files are missing, or a step failed.
    """
    pending = [step for step in selected if not is_done(step)]
    print(f"{len(selected) - len(pending)} of {len(selected)} steps are done", file=sys.stderr)
    if missing := list(lacking(pending)):
        raise UserError(f"missing: {'; '.join(missing)}", "provide them, or only print the steps with --plan")
    for step in pending:
        run(step)
    return {"steps": len(selected), "ran": len(pending)}


def lacking(pending: Sequence[Step]) -> Iterator[str]:
    """Yield missing requirements of the pending steps, each with its cure."""
    needs = {need for step in pending for need in step.needs}
    if "gpu" in needs and not gpu_here():
        yield "a GPU (with a CUDA build of torch: make install TORCH_INDEX=)"
    if "key" in needs and not os.environ.get("OPENAI_API_KEY"):
        yield f"a key for {CHAT_MODEL} (OPENAI_API_KEY)"
    for file, source in read_list()["files"].items():
        if file in needs and not Path(file).is_file():
            yield f"{file} ({source})"


def gpu_here() -> bool:
    import torch

    return torch.cuda.is_available()


def note_of(step: Step) -> Path:
    return NOTES / f"{step.name.replace('/', '-')}.json"


def digest(step: Step) -> str:
    """Return a digest of the command and the package's version."""
    return hashlib.sha256(f"{version('text2grad')} {step.words}".encode()).hexdigest()[:16]


def is_done(step: Step) -> bool:
    """True if a step succeeded with the same command."""
    record = note_of(step)
    return record.is_file() and json.loads(record.read_text(encoding="utf-8"))["digest"] == digest(step)


def run(step: Step) -> None:
    """Run one step and record it.

    Raises:
        UserError: it failed, reached a budget or was interrupted.
    """
    words = words_of(step)
    print(f"== {step.name}: {shlex.join(words)}", file=sys.stderr, flush=True)
    done = subprocess.run([*words, "--json"], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in ACCEPTED_CODES:
        raise UserError(
            f"{step.name} failed (exit code {done.returncode})", "see above; the same command resumes here"
        )
    NOTES.mkdir(parents=True, exist_ok=True)
    summary = (done.stdout.splitlines() or ["null"])[-1]
    record = {"digest": digest(step), "code": done.returncode, "words": step.words, "summary": json.loads(summary)}
    note_of(step).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
