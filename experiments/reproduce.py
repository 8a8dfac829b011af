"""The paper's tables and figures as one list of commands, for a node of GPUs and a key of a chat model.

    python experiments/reproduce.py --plan [--only slf5k kodcode ultrafeedback mistral] [--gpus 8] [--gpu-usd 2.5]
    python experiments/reproduce.py --check [--only ...]
    python experiments/reproduce.py [--only ...] [--gpus 8]

`--plan` prints every step in order: what of the paper it shows, the hours that it holds the node, what it costs,
its command. Nothing is run and nothing is needed. Without it the steps run in the current folder, whose `runs/` and
`data/` they use. A step that ended well is noted in `runs/reproduce/` with a digest of its command and not run
again; one that was stopped goes on where it was. What is missing (GPUs, the key, files in `data/`) is said in one
line before anything runs. The list itself is experiments/reproduce.yaml; docs/reproduce.md says what is exact.

`--check` runs every step for real in a world made on the spot (experiments/tiny_world.py: tiny models and data, a
scripted chat endpoint; no network, GPU or key), in a folder that is removed: the step's own words, one step of PPO,
two problems to measure on. Its last line is one JSON object: `steps`, `ran`, `failed` (the name and the one line of
each); the exit code is 1 if any failed. So no command of the list fails after the training that it measures was
paid for.

Hours are estimates and not measured: PPO's are the preset's steps times the minutes of the paper's Table 13, the
others tokens divided by the rates below. The last line of stdout of `--plan` is one JSON object: `steps`,
`node_hours`, `gpu_hours`, `gpu_usd`, `chat_usd`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib.metadata import version
from io import StringIO
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import tiny_world
from text2grad.chat.prices import read_prices
from text2grad.data import files
from text2grad.errors import exit_on_user_error
from text2grad.strict_yaml import parse_yaml

LIST = Path(__file__).with_suffix(".yaml")
NOTES = Path("runs/reproduce")
GROUPS = ("slf5k", "kodcode", "ultrafeedback", "mistral")
"""Parts of the list, by what stands before the slash of a step's name, in the order in which they are run."""
PAPER_GPUS = 8
TRAINED_A_SECOND, WRITTEN_A_SECOND = 2_000, 1_000
"""Tokens a second of one GPU with 80 GB at 8 billion parameters: trained on with adapters (a fifth of an A100's
bfloat16 peak at 4 FLOPs a weight and token), and sampled 64 answers at a time. Assumed, not measured."""
CHAT_MODEL = "gpt-4o"
SPREAD = ("sft", "imitate", "train-reward", "train-units", "train")
"""Commands that share their work over several processes; the others take one GPU of the node."""
LAB = ("refine", "imitate", "reflect", "train-units")
"""Commands of the lab: `python -m text2grad_lab`."""
WENT_WELL = (0, 3)
"""Exit codes after which the list goes on; 3: some records failed, and the summary says how many."""
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Step:
    """One command of `text2grad`, of a data set, and what it takes.

    `gpu_hours`: of the GPUs that work. `chat_usd`: dollars to the chat model. `needs`: `gpu`, `key`, or a file.
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

    @property
    def spread(self) -> bool:
        return self.words[0] in SPREAD

    def node_hours(self, gpus: int) -> float:
        """How long it holds a node of so many GPUs."""
        return self.gpu_hours / gpus if self.spread else self.gpu_hours


def main() -> None:
    chosen = options()
    wanted = [step for step in steps() if step.group in chosen.only]
    if chosen.plan:
        print_plan(wanted, chosen.gpus, chosen.gpu_usd)
        return
    if chosen.check:
        found = check(wanted)
        print(json.dumps(found))
        raise SystemExit(1 if found["failed"] else 0)
    pending = [step for step in wanted if not is_done(step)]
    print(f"{len(wanted) - len(pending)} of {len(wanted)} steps are done", file=sys.stderr)
    if missing := list(lacking(pending, chosen.gpus)):
        raise SystemExit(f"error: missing: {'; '.join(missing)} (--plan needs nothing)")
    for step in pending:
        run(step, chosen.gpus)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", action="store_true", help="only say what would be run, and what it costs")
    parser.add_argument("--check", action="store_true", help="run every step on tiny models and data made here")
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=GROUPS)
    parser.add_argument("--gpus", type=positive, default=PAPER_GPUS)
    parser.add_argument("--gpu-usd", type=float, default=2.5, help="price of one GPU for an hour")
    return parser.parse_args()


def positive(word: str) -> int:
    if (count := int(word)) < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return count


# The list


def read_list() -> dict[str, Any]:
    """The tables of experiments/reproduce.yaml."""
    found: dict[str, Any] = parse_yaml(LIST.read_text(encoding="utf-8"))
    return found


def steps() -> list[Step]:
    """Every step, one part of the list after the other, each in the order of the file."""
    tables = read_list()
    found = [step_of(row, facts) for row in tables["steps"] for facts in combinations(row["over"], tables)]
    return sorted(found, key=lambda step: GROUPS.index(step.group))


def combinations(over: Mapping[str, Sequence[str]], tables: Row) -> Iterator[dict[str, Any]]:
    """The fields of every combination of rows, with their names."""
    for names in product(*over.values()):
        facts: dict[str, Any] = dict(zip(over, names, strict=True))
        for kind, name in facts.copy().items():
            facts |= tables.get(kind, {}).get(name, {})
        yield facts


def step_of(row: Row, facts: dict[str, Any]) -> Step:
    """A row of the list with the fields of one combination put in."""
    if "measured" in facts:
        facts = facts | {"measured": facts["measured"].format_map(facts)}
    gpu_hours = trained_hours(value(row, "trained", facts)) + written_hours(value(row, "written", facts))
    asked = value(row, "asked", facts) or (0, 0, 0)
    files = value(row, "files", facts) or ()
    gpu, key = (("gpu",) if row.get("gpu", True) else ()), (("key",) if asked[0] else ())
    return Step(
        row["name"].format_map(facts),
        facts["data"],
        row["shows"].format_map(facts),
        tuple(shlex.split(row["words"].format_map(facts))),
        gpu_hours + ppo_hours(*(value(row, "ppo", facts) or (0, 0))),
        chat_usd(*asked),
        (*gpu, *key, *files),
    )


def value(row: Row, name: str, facts: Row) -> Any:
    """What a row says of its cost: a value, or the field of the combination that has it; 0 if it says nothing."""
    said = row.get(name, 0)
    return facts[said] if isinstance(said, str) else said


def trained_hours(millions: float) -> float:
    return millions * 1e6 / TRAINED_A_SECOND / 3600


def written_hours(millions: float) -> float:
    return millions * 1e6 / WRITTEN_A_SECOND / 3600


def ppo_hours(count: int, minutes: float) -> float:
    """GPU hours of so many steps, at the paper's minutes for one on its eight GPUs."""
    return count * minutes / 60 * PAPER_GPUS


def chat_usd(questions: int, read: int, said: int) -> float:
    """Dollars for so many questions with so many tokens read and said for each."""
    return questions * read_prices(None)[CHAT_MODEL].cost({"prompt_tokens": read, "completion_tokens": said})


# The plan


def print_plan(wanted: Sequence[Step], gpus: int, gpu_usd: float) -> None:
    """Every step with its command, a line for each part of the list, and the totals as JSON."""
    for step in wanted:
        needs = ", ".join(step.needs) or "nothing"
        print(f"{step.name} [{step.shows}] {step.node_hours(gpus):.1f} h, chat ${step.chat_usd:.2f}, needs {needs}")
        print(f"    {shlex.join(words_of(step, gpus))}")
    print()
    for line in table(wanted, gpus, gpu_usd):
        print(line)
    print(json.dumps(totals(wanted, gpus, gpu_usd)))


def table(wanted: Sequence[Step], gpus: int, gpu_usd: float) -> Iterator[str]:
    """The totals of each part of the list, as a table of Markdown."""
    yield "| part | steps | node hours | GPU hours | GPU $ | chat $ |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for name in (*GROUPS, "all"):
        found = totals([step for step in wanted if name in (step.group, "all")], gpus, gpu_usd)
        if found["steps"]:
            yield f"| {name} | " + " | ".join(f"{figure:,}" for figure in found.values()) + " |"


def totals(wanted: Iterable[Step], gpus: int, gpu_usd: float) -> dict[str, int]:
    """Steps, hours that they hold the node, those times its GPUs, and dollars."""
    wanted = list(wanted)
    hours = sum(step.node_hours(gpus) for step in wanted)
    return {
        "steps": len(wanted),
        "node_hours": round(hours),
        "gpu_hours": round(hours * gpus),
        "gpu_usd": round(hours * gpus * gpu_usd),
        "chat_usd": round(sum(step.chat_usd for step in wanted)),
    }


def words_of(step: Step, gpus: int) -> list[str]:
    """The command line of a step: several processes where they can share it."""
    program = ["-m", "text2grad_lab" if step.words[0] in LAB else "text2grad.cli", *step.words]
    if step.spread and gpus > 1:
        return ["torchrun", "--standalone", f"--nproc_per_node={gpus}", *program]
    return [sys.executable, *program] if step.words[0] in LAB else ["text2grad", *step.words]


# The check


def check(wanted: Sequence[Step]) -> dict[str, Any]:
    """Run steps in a tiny world, those of different data sets side by side: how many, how many ran to their end,
    and of the others `name` and `line`. A step that uses what another one makes needs that among `wanted`, too."""
    os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", OPENAI_API_KEY="none")  # before torch is imported
    parts = [[step for step in wanted if step.data == data] for data in dict.fromkeys(step.data for step in wanted)]
    with TemporaryDirectory() as name, chdir(name):
        tiny_world.make_models(Path())
        tiny_world.write_files(Path())
        # Not forked: torch may have started threads here.
        with multiprocessing.get_context("spawn").Pool(min(len(parts), os.cpu_count() or 1)) as pool:
            said = [line for lines in pool.imap_unordered(check_part, parts) for line in lines]
    lines = dict(said)
    failed = [{"name": step.name, "line": lines[step.name]} for step in wanted if lines[step.name]]
    return {"steps": len(wanted), "ran": len(wanted) - len(failed), "failed": failed}


def check_part(part: Sequence[Step]) -> list[tuple[str, str]]:
    """Run steps one after the other in the current folder; of each its name with its line, "" if it ended well."""
    found = []
    with tiny_world.chat_endpoint() as url, mock.patch.object(files, "_hub_rows", tiny_world.hub_rows):
        os.environ["OPENAI_BASE_URL"] = url
        for step in part:
            started = time.perf_counter()
            found.append((step.name, check_step(step)))
            took = f"{step.name} ({time.perf_counter() - started:.1f} s)"
            print(f"{took} FAILED: {found[-1][1]}" if found[-1][1] else took, file=sys.stderr, flush=True)
    return found


def check_step(step: Step) -> str:
    """Run the words of a step here, with `tiny_world.SMALL` after them; the line with which it failed, or ""."""
    from text2grad.cli import main as text2grad
    from text2grad_lab.__main__ import register

    register()
    stand_in_for_kept_policies(step)
    said = StringIO()
    try:
        with redirect_stdout(StringIO()), redirect_stderr(said):
            text2grad([*step.words, *tiny_world.SMALL.get(step.words[0], ()), "--json"])
    except SystemExit as left:
        lines = [line for line in said.getvalue().splitlines() if line.strip()] or ["nothing was said"]
        return "" if not left.code else f"exit code {left.code}: {lines[-1]}"
    except Exception as error:  # a bug of the command: one line here as well, and the other steps are still run
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    return ""


def stand_in_for_kept_policies(step: Step) -> None:
    """A policy kept after 400 steps is, where one step is run, the policy after that."""
    for word in step.words:
        kept = re.fullmatch(r"(.*/ppo/(\w+))/\2-step-\d+", word)
        if kept and Path(word).parent.is_dir() and not Path(word).exists():
            Path(word).symlink_to(Path("policy"), target_is_directory=True)


# The run


def lacking(pending: Sequence[Step], gpus: int) -> Iterator[str]:
    """What the pending steps need and is not there, each with its cure."""
    needs = {need for step in pending for need in step.needs}
    if "gpu" in needs and (found := gpus_here()) < gpus:
        yield f"{gpus} GPUs, found {found} (--gpus N)"
    if "key" in needs and not os.environ.get("OPENAI_API_KEY"):
        yield f"a key for {CHAT_MODEL} (OPENAI_API_KEY)"
    for file, source in read_list()["files"].items():
        if file in needs and not Path(file).is_file():
            yield f"{file} ({source})"


def gpus_here() -> int:
    import torch

    return torch.cuda.device_count()


def note_of(step: Step) -> Path:
    return NOTES / f"{step.name.replace('/', '-')}.json"


def digest(step: Step) -> str:
    """Of the command and the version that ran it."""
    return hashlib.sha256(f"{version('text2grad')} {step.words}".encode()).hexdigest()[:16]


def is_done(step: Step) -> bool:
    """Whether a step ended well with this very command."""
    note = note_of(step)
    return note.is_file() and json.loads(note.read_text(encoding="utf-8"))["digest"] == digest(step)


def run(step: Step, gpus: int) -> None:
    """Run one step and note it.

    Raises:
        SystemExit: it ended with an error, or has to be run again (budget reached, interrupted).
    """
    words = words_of(step, gpus)
    print(f"== {step.name}: {shlex.join(words)}", file=sys.stderr, flush=True)
    done = subprocess.run([*words, "--json"], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in WENT_WELL:
        print(f"error: {step.name} ended with {done.returncode}; the same command goes on here", file=sys.stderr)
        raise SystemExit(done.returncode)
    NOTES.mkdir(parents=True, exist_ok=True)
    summary = (done.stdout.splitlines() or ["null"])[-1]
    note = {"digest": digest(step), "code": done.returncode, "words": step.words, "summary": json.loads(summary)}
    note_of(step).write_text(json.dumps(note, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    with exit_on_user_error():
        main()
