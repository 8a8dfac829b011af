"""Run the steps of the paper's list, in parallel on the GPUs of this machine.

A finished step is recorded in `runs/paper/` with a digest of its command and is not run again; an
interrupted one resumes. Missing GPUs, keys, files, models and data sets are reported before
anything runs. Each step is one process on one GPU.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import chdir, nullcontext
from fnmatch import fnmatch
from importlib.metadata import version
from pathlib import Path
from typing import Any

from text2grad.errors import EXIT_SOME_RECORDS_FAILED, UserError, first_line
from text2grad_lab.paper.steps import CHAT_MODEL, Row, Step, hub_needs, read_list, words_of

NOTES = Path("runs/paper")
ACCEPTED_CODES = (0, EXIT_SOME_RECORDS_FAILED)
"""Exit codes after which the next step runs."""
VISIBLE = "CUDA_VISIBLE_DEVICES"


def run_paper(selected: Sequence[Step], keep_going: bool = False) -> dict[str, Any]:
    """Run the steps that are not done yet, each after the steps that it needs.

    With `keep_going` a failure stops only the steps that need the failed one.

    Raises:
        UserError: something is missing, or a step failed without `keep_going`.
    """
    pending = [step for step in selected if not is_done(step)]
    print(f"{len(selected) - len(pending)} of {len(selected)} steps are done", file=sys.stderr)
    gpus = devices()
    if missing := list(lacking(pending, gpus)):
        raise UserError(f"missing: {'; '.join(missing)}", "provide them, or only print the steps with --plan")
    failed, ran = run_side_by_side(pending, gpus or [""], keep_going)
    if failed and not keep_going:
        name, reason = next(iter(failed.items()))
        raise UserError(f"{name} failed ({reason})", "see above; the same command resumes here")
    for name, reason in failed.items():
        print(f"{name}: {reason}", file=sys.stderr)
    return {"steps": len(selected), "ran": ran, "failed": failed, "exit_code": 1 if failed else 0}


def run_seed(selected: Sequence[Step], seed: int, keep_going: bool) -> dict[str, Any]:
    """Run the steps of a seed in the folder `seed-N`, which shares `data`.

    Seed 0 runs in the current folder.
    """
    folder = Path(f"seed-{seed}" if seed else ".")
    folder.mkdir(exist_ok=True)
    if Path("data").is_dir() and not (folder / "data").exists():
        (folder / "data").symlink_to(Path("../data"), target_is_directory=True)
    with chdir(folder):
        return run_paper(selected, keep_going)


def run_side_by_side(pending: Sequence[Step], gpus: Sequence[str], keep_going: bool) -> tuple[dict[str, str], int]:
    """Run steps, one on each GPU; return the failed ones with reasons, and the number that ran."""
    waiting, free = list(pending), list(gpus)
    running: dict[Future[str], tuple[Step, str]] = {}
    failed: dict[str, str] = {}
    ran = 0
    with ThreadPoolExecutor(len(gpus)) as pool:
        while waiting or running:
            for step in list(waiting):
                if lost := next((name for name in step.after if name in failed), ""):
                    waiting.remove(step)
                    failed[step.name] = f"not run, it needs {lost}"
                elif free and is_ready(step, waiting, [other for other, _ in running.values()]):
                    waiting.remove(step)
                    gpu = free.pop(0)
                    running[pool.submit(run, step, gpu, len(gpus) > 1)] = step, gpu
            if not running:
                continue
            ended, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in ended:
                step, gpu = running.pop(future)
                free.append(gpu)
                if reason := future.result():
                    failed[step.name] = reason
                    waiting = waiting if keep_going else []
                else:
                    ran += 1
    return failed, ran


def is_ready(step: Step, waiting: Sequence[Step], running: Sequence[Step]) -> bool:
    """True if all earlier steps have finished, and no running step holds the step's file."""
    left = [other for other in (*waiting, *running) if other is not step]
    before = any(
        other.name in step.after or any(fnmatch(other.name, pattern) for pattern in step.awaits) for other in left
    )
    return not before and not any(step.holds and other.holds == step.holds for other in running)


def lacking(pending: Sequence[Step], gpus: Sequence[str]) -> Iterator[str]:
    """Yield missing requirements of the pending steps, each with its cure."""
    needs = {need for step in pending for need in step.needs}
    if "gpu" in needs and not gpus:
        yield "a GPU (with a CUDA build of torch: make install TORCH_INDEX=)"
    if "key" in needs and not os.environ.get("OPENAI_API_KEY"):
        yield f"a key for {CHAT_MODEL} (OPENAI_API_KEY)"
    for file, source in read_list()["files"].items():
        if file in needs and not Path(file).is_file():
            yield f"{file} ({source})"
    yield from lacking_on_hub(hub_needs(pending))


def lacking_on_hub(rows: Mapping[str, Row]) -> Iterator[str]:
    """Yield the models and data sets that are neither in the cache nor open to this account."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    kinds = {name: "dataset" if row.get("data") else "model" for name, row in rows.items()}
    cache = Path(constants.HF_HUB_CACHE)
    absent = [
        name
        for name, kind in kinds.items()
        if not Path(name).is_dir() and not (cache / f"{kind}s--{name.replace('/', '--')}" / "snapshots").is_dir()
    ]
    for name in absent:
        try:
            HfApi().auth_check(name, repo_type=kinds[name])
        except GatedRepoError:
            yield f"{name} (accept its licence at https://huggingface.co/{name}, then hf auth login)"
        except RepositoryNotFoundError:
            yield f"{name} (not on the hub, or not for this account)"
        except Exception as error:  # offline, a proxy, a server's error: the client has no common class for them
            yield f"the hub cannot be reached for {', '.join(absent)} ({first_line(error)})"
            return


def devices() -> list[str]:
    """Return the GPUs that steps may use, named as in `CUDA_VISIBLE_DEVICES`."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    given = os.environ.get(VISIBLE)
    return (given.split(",") if given else [str(index) for index in range(count)])[:count]


def note_of(step: Step) -> Path:
    return NOTES / f"{step.name.replace('/', '-')}.json"


def digest(step: Step) -> str:
    """Return a digest of the command and the package's version."""
    return hashlib.sha256(f"{version('text2grad')} {step.words}".encode()).hexdigest()[:16]


def is_done(step: Step) -> bool:
    """True if a step succeeded with the same command."""
    record = note_of(step)
    return record.is_file() and json.loads(record.read_text(encoding="utf-8"))["digest"] == digest(step)


def run(step: Step, gpu: str, to_file: bool) -> str:
    """Run one step on a GPU and record it; return the reason of a failure, or "".

    Its progress goes to stderr, or `to_file` next to its record.
    """
    words = words_of(step)
    print(f"== {step.name}: {shlex.join(words)}", file=sys.stderr, flush=True)
    NOTES.mkdir(parents=True, exist_ok=True)
    log = note_of(step).with_suffix(".log")
    environment = {**os.environ, VISIBLE: gpu} if gpu else None
    with log.open("a", encoding="utf-8") if to_file else nullcontext() as errors:
        done = subprocess.run(
            [*words, "--json"], stdout=subprocess.PIPE, stderr=errors, text=True, check=False, env=environment
        )
    if done.returncode not in ACCEPTED_CODES:
        return f"exit code {done.returncode}" + (f", see {log}" if to_file else "")
    summary = (done.stdout.splitlines() or ["null"])[-1]
    record = {"digest": digest(step), "code": done.returncode, "words": step.words, "summary": json.loads(summary)}
    note_of(step).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return ""
