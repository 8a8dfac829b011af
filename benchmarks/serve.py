"""Measure `text2grad serve`: requests per second, and how long a critic keeps its clients waiting.

    python benchmarks/serve.py [--clients 8] [--seconds 5]

The server is a separate process with a critic that takes no time, so the figures measure HTTP, JSON
and the queue. A request has 64 responses of 400 characters, as in a training step, or one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
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
        """Return the same critique of every response."""
        span = Span(start=0, end=6, label=-1, text=TEXT[:6], reason="too short")
        return [Critique(text="Too short.", spans=(span,) * 4, score=-0.5) for _ in responses]


def requests_per_second(clients: int = 8, seconds: float = 5.0, responses: int = 1) -> float:
    """Return the requests per second, of `responses` responses each, that a server answers to its
    clients."""
    with server() as address, ThreadPoolExecutor(clients) as pool:
        counts = list(pool.map(lambda _: _count_answers(address, seconds, responses), range(clients)))
    return sum(counts) / seconds


def _count_answers(address: str, seconds: float, responses: int) -> int:
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
    """Yield the address of a server process that holds the critic."""
    command = [sys.executable, "-m", "text2grad.cli", "serve", "--config", "demo", "--critic.kind", "serve:Instant"]
    command += ["--port", "0"]
    with subprocess.Popen(command, cwd=Path(__file__).parent, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def main() -> None:
    """Print the figures as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    figures = {
        "serve_requests_per_second": round(requests_per_second(options.clients, options.seconds), 1),
        "one_client": round(requests_per_second(1, options.seconds), 1),
        "batches_of_64_per_second": round(requests_per_second(options.clients, options.seconds, 64), 1),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
