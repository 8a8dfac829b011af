"""Measure `text2grad serve`: requests per second, and how long a critic keeps its clients waiting.

    python benchmarks/serve.py [--clients 8] [--seconds 5]

The server is a process of its own and holds a critic that takes no time, so the figures are of HTTP, JSON and the
queue. Each request asks about 64 responses of 400 characters, as a step of training does, or about one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from text2grad.critics.served import ServedCritic
from text2grad.feedback import Critique, Example, Judgement, Message, Source, Span

TEXT = "a word and some more words that say little " * 9


class Instant:
    """Blames the first words of every response."""

    source = Source(kind="program", model="instant")

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        """The same critique of each."""
        span = Span(start=0, end=6, label=-1, text=TEXT[:6], reason="too short")
        return [Critique(text="Too short.", spans=(span,) * 4, score=-0.5) for _ in responses]


def requests_per_second(clients: int = 8, seconds: float = 5.0, responses: int = 1) -> float:
    """Return how many requests of so many responses a server answers, asked by several clients at once."""
    with server() as address, ThreadPoolExecutor(clients) as pool:
        counts = list(pool.map(lambda _: _asked(address, seconds, responses), range(clients)))
    return sum(counts) / seconds


def _asked(address: str, seconds: float, responses: int) -> int:
    critic, count = ServedCritic(address), 0
    examples = [Example(id=str(n), prompt=(Message(role="user", content=TEXT),)) for n in range(responses)]
    texts = [TEXT] * responses
    assert critic.critique(examples, texts) == Instant().critique(examples, texts)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        critic.critique(examples, texts)
        count += 1
    return count


@contextmanager
def server() -> Iterator[str]:
    """The address of a server process that holds the critic."""
    with tempfile.TemporaryDirectory() as folder:
        words = [
            "serve",
            "--port",
            "0",
            "--config",
            "demo",
            "--run.folder",
            folder,
            "--critic.kind",
            "serve:Instant",
        ]
        path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        process = subprocess.Popen(
            [sys.executable, "-m", "text2grad.cli", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        )
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()
            process.wait()
            process.stdout.close()


def main() -> None:
    """Print the figures as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=5.0)
    asked = parser.parse_args()
    figures = {
        "serve_requests_per_second": round(requests_per_second(asked.clients, asked.seconds), 1),
        "one_client": round(requests_per_second(1, asked.seconds), 1),
        "batches_of_64_per_second": round(requests_per_second(asked.clients, asked.seconds, 64), 1),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
