"""Measure how fast `text2grad train` stops, and compare a resumed run with an uninterrupted one.

A run is repeatedly started, stopped with SIGTERM at a random moment, and resumed. Finally it runs
to its end, and its weights and metrics are compared with those of an uninterrupted run. Moments are
drawn from a fixed seed: 0 to `--within` seconds after the process took the run's lock. The clock
runs from the signal to the end of the process, which includes writing a checkpoint and the exit of
the interpreter.

    OMP_NUM_THREADS=1 python benchmarks/stop.py [--points 20] [--within 20] [--folder RUN] \\
        [-- SETTINGS ...]

Without `--folder`, a run with an SFT policy, a tiny one is made first. SETTINGS are those of
`train`, by default the demo's with the program critic. The last line of stdout is one JSON object:
signals, seconds_median, seconds_max, cpu_max (CPU seconds of the process after the signal, which
matter on busy cores), in_step (signals during an unfinished step), equal (bitwise), load (of the
last minute). Targets: seconds_max at most 15; equal true.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

TINY = ("--config", "demo", "--task.limit", "256", "--run.threads", "1")
TRAINING = (*TINY, "--critic.kind", "program", "--ppo.steps", "6")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=20)
    parser.add_argument("--within", type=float, default=20.0, help="seconds in which a signal comes")
    parser.add_argument("--folder", type=Path, help="a run with an SFT policy")
    parser.add_argument("settings", nargs="*", default=list(TRAINING))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary) / "run"
        if options.folder is None:
            wait(start("sft", *TINY, "--run.folder", str(folder)))
        wait(start("train", "--name", "straight", "--run.folder", str(folder), *options.settings))
        words = ("train", "--name", "stopped", "--run.folder", str(folder), *options.settings)
        stops = stopped(words, folder / "ppo" / "stopped", options.points, options.within)
        equal = results(folder / "ppo" / "straight") == results(folder / "ppo" / "stopped")
    seconds = [stop[0] for stop in stops]
    print(
        json.dumps(
            {
                "signals": len(stops),
                "seconds_median": round(statistics.median(seconds), 2),
                "seconds_max": round(max(seconds), 2),
                "cpu_max": round(max(stop[1] for stop in stops), 2),
                "in_step": sum(stop[2] for stop in stops),
                "equal": equal,
                "load": round(os.getloadavg()[0], 1),
            }
        )
    )


def start(*words: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "text2grad.cli", *words]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def wait(process: subprocess.Popen[str]) -> None:
    _, output = process.communicate()
    if process.returncode:
        raise SystemExit(output)


def stopped(words: tuple[str, ...], place: Path, points: int, within: float) -> list[tuple[float, float, bool]]:
    """Return for each signal the seconds, the processor time, and whether a step was dropped."""
    rng = random.Random(0)
    results = []
    for number in range(points):
        process = start(*words)
        while process.poll() is None and not (place / "run.lock").exists():
            time.sleep(0.05)
        time.sleep(rng.uniform(0, within))
        if process.poll() is not None:
            break
        started, busy = time.monotonic(), sum(psutil.Process(process.pid).cpu_times()[:4])
        before = used()
        process.send_signal(signal.SIGTERM)
        _, output = process.communicate()
        results.append((time.monotonic() - started, used() - before - busy, "stopped after step" in output))
        seconds, share, _ = results[-1]
        line = f"{number + 1}: {seconds:.2f} s, {share:.2f} of the processor, code {process.returncode}"
        print(line, file=sys.stderr, flush=True)
        if process.returncode != 143:
            raise SystemExit(output)
    if not (place / "policy").is_dir():
        wait(start(*words))
    return results


def used() -> float:
    """Processor seconds of all processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def results(place: Path) -> tuple[list[dict[str, Any]], dict[str, bytes]]:
    """Return the metrics (without seconds) and weights of a run."""
    lines = (place / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [{k: v for k, v in json.loads(line).items() if not k.startswith("seconds")} for line in lines]
    return rows, {path.name: path.read_bytes() for path in (place / "policy").glob("*.safetensors")}


if __name__ == "__main__":
    main()
