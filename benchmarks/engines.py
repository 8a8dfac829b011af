"""Compare engines with the local loop, and measure the critic that runs in parallel.

    OMP_NUM_THREADS=1 python benchmarks/engines.py [--only serve] [--verl PYTHON]

The last line of stdout is one JSON object; figures of engines that are not installed are null.

- `advantage_difference`: by engine, the largest difference of an advantage from the local loop's
  on equal samples.
- `weight_difference`: the same for weights, after some steps of plain SGD on a tiny model. trl:
  returns and groups, several epochs and mini-batches, failed and truncated answers, all weights
  and adapters. verl (`--verl` is the Python of its environment): two steps of its trainer.
- `deepspeed`: by ZeRO stage, `ran` if two processes give the same weights as one.
- `async_seconds`: until 64 rollouts that end over 2 s are scored by a critic that takes 1 s per
  request.
- `poisoned_rows`: rows of 8 that fail together with the one whose critique does not fit its text.
- `serve_requests_per_second`: as in benchmarks/serve.py.
- `own_process_lines`: lines of the product that distribute training without an engine.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import random
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TESTS = (ROOT / "tests", ROOT / "tests" / "unit" / "engines")
PROCESSES = re.compile(r"\b(Ranks|fully_shard|run\.parallel|all_reduce|all_gather)\b")
"""Names that code for several processes would need."""
ROLLOUTS, SPREAD, TAKES = 64, 2.0, 1.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=[*FIGURES], default=[*FIGURES])
    parser.add_argument("--verl", default="")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    sys.path[:0] = map(str, (*TESTS, ROOT / "benchmarks"))
    figures: dict[str, Any] = {}
    for name in arguments.only:
        figures |= equality(arguments.verl) if name == "equality" else FIGURES[name]()
        print(figures, file=sys.stderr)
    print(json.dumps(figures))
    return 0


def equality(verl: str = "") -> dict[str, dict[str, float | None]]:
    """The largest differences from the local loop, of each engine."""
    pairs: dict[str, tuple[float | None, float | None]] = {
        "trl": trl_differences() if installed("trl") else (None, None),
        "verl": verl_differences(verl) if verl else (None, None),
    }
    return {
        "advantage_difference": {name: advantage for name, (advantage, _) in pairs.items()},
        "weight_difference": {name: weight for name, (_, weight) in pairs.items()},
    }


def trl_differences() -> tuple[float, float]:
    """Return the largest over the cases of tests/unit/engines/test_trl_equality.py."""
    from both_engines import differences, left_by
    from test_trl_equality import BASE, CASES

    from text2grad.train.ppo_settings import PPOSettings
    from tiny_runs import tiny_model

    pairs = []
    with TemporaryDirectory() as place:
        model = tiny_model(Path(place) / "model")
        for case, (changes, more) in CASES.items():
            settings = PPOSettings(**{**BASE, **changes})
            folder = Path(place) / case
            pairs.append(differences(*(left_by(e, model, folder / e, settings, **more) for e in ("local", "trl"))))
    return max(advantage for advantage, _ in pairs), max(weight for _, weight in pairs)


def verl_differences(python: str) -> tuple[float, float]:
    """Run tests/engines/verl_equality.py in verl's environment."""
    program = ROOT / "tests" / "engines" / "verl_equality.py"
    paths = os.pathsep.join(map(str, (ROOT / "src", *TESTS, program.parent)))
    ended = subprocess.run(
        [python, str(program)],
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    values = json.loads(ended.stdout.splitlines()[-1])
    return values["advantage_difference"], values["weight_difference"]


def deepspeed() -> dict[str, Any]:
    """Run the nightly tests that two processes under each profile leave what one does."""
    if not installed("deepspeed"):
        return {"deepspeed": None}
    return {"deepspeed": {f"zero{stage}": "ran" if deepspeed_runs(stage) else "failed" for stage in (1, 2, 3)}}


def deepspeed_runs(stage: int) -> bool:
    test = TESTS[1] / "test_trl_processes.py"
    selection = ("-k", f"deepspeed and {stage} and weights") if stage != 2 else ("-k", "deepspeed and 2")
    command = (
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        "nightly",
        *selection,
        str(test),
    )
    paths = os.pathsep.join(map(str, (ROOT / "src", *TESTS)))
    return subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}).returncode == 0


def critic_beside() -> dict[str, float]:
    """Seconds until rollouts that end one by one are all scored, and rows that a bad critique takes
    with it."""
    import text2grad as t2g
    from text2grad.policy.files.tokenizer import load_tokenizer
    from tiny_runs import tiny_model

    class Slow:
        source = t2g.Source(kind="program", model="slow")

        def critique(self, examples: Sequence[Any], responses: Sequence[str]) -> list[Any]:
            time.sleep(TAKES)
            return [t2g.Critique(text="") for _ in responses]

    class Poison(Slow):
        def critique(self, examples: Sequence[Any], responses: Sequence[str]) -> list[Any]:
            bad = (t2g.Span(start=900, end=990, label=-1, text="nowhere"),)
            return [t2g.Critique(text="", spans=bad if n == 3 else ()) for n in range(len(responses))]

    with TemporaryDirectory() as place:
        tokenizer = load_tokenizer(str(tiny_model(Path(place) / "model")))
    example = t2g.Example(id="a", prompt=(t2g.Message(role="user", content="ok"),))
    rollouts = [t2g.Trajectory(example, tokenizer.encode("keep the even ones")) for _ in range(ROLLOUTS)]
    rng = random.Random(0)

    async def all_scored() -> None:
        credit = t2g.TokenCredit(Slow(), tokenizer)

        async def rollout(trajectory: Any) -> None:
            await asyncio.sleep(rng.random() * SPREAD)
            await credit.score([trajectory])

        await asyncio.gather(*map(rollout, rollouts))

    start = time.perf_counter()
    asyncio.run(all_scored())
    seconds = time.perf_counter() - start
    scored = t2g.TokenCredit(Poison(), tokenizer, max_failed=1.0).score_batch(rollouts[:8])
    return {
        "async_seconds": round(seconds, 2),
        "poisoned_rows": sum(bool(row.failed) for place, row in enumerate(scored) if place != 3),
    }


def served() -> dict[str, float]:
    """Requests a second that `text2grad serve` answers."""
    from serve import requests_per_second

    return {"serve_requests_per_second": round(requests_per_second(), 1)}


def own_process_lines() -> dict[str, int]:
    """Lines of the product, its engines and plug-ins aside, that name what sharing over processes
    needs."""
    files = [
        file for file in (ROOT / "src" / "text2grad").rglob("*.py") if not {"engines", "plugins"} & {*file.parts}
    ]
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    return {"own_process_lines": sum(bool(PROCESSES.search(line)) for line in lines)}


def installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


FIGURES: dict[str, Callable[[], dict[str, Any]]] = {
    "equality": equality,
    "deepspeed": deepspeed,
    "critic": critic_beside,
    "serve": served,
    "own": own_process_lines,
}

if __name__ == "__main__":
    sys.exit(main())
