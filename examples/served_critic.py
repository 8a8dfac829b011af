"""A critic in a separate process: `text2grad serve` runs it, and TRL's trainer asks it over HTTP.

    pip install 'text2grad[trl,page]'
    python examples/served_critic.py

The script starts the server. Yours would keep running, on this machine or another:
`text2grad serve runs/mine`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import text2grad as t2g


class Praises:
    """A critic that praises every `b`; the verdict rises with their share."""

    source = t2g.Source(kind="program", model="more b")

    def critique(self, examples: Sequence[t2g.Example], responses: Sequence[str]) -> list[t2g.Critique]:
        return [self.judge(text) for text in responses]

    def judge(self, text: str) -> t2g.Critique:
        places = [place for place, letter in enumerate(text) if letter == "b"]
        spans = tuple(t2g.Span(start=place, end=place + 1, label=1, text="b") for place in places)
        return t2g.Critique(text=f"{len(places)} times b", spans=spans, score=len(places) / max(1, len(text)))


@contextmanager
def server() -> Iterator[str]:
    """Yield the address of a server that runs the critic."""
    serve = [sys.executable, "-m", "text2grad.cli", "serve", "--port", "0", "--config", "demo"]
    critic = ["--critic.kind", "served_critic:Praises"]
    with subprocess.Popen(
        [*serve, *critic], cwd=Path(__file__).parent, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


if __name__ == "__main__":
    from trl_grpo import train

    with server() as address:
        critic = t2g.ServedCritic(address)
        print(f"the critic at {address}: {critic.source.model}")
        train(critic)
