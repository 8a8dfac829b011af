"""What looks at each step of a run and changes nothing in it."""

from __future__ import annotations

from text2grad.durable.run import OnStep


def combined(*hooks: OnStep | None) -> OnStep | None:
    """Combine hooks in their order, skipping None."""
    known = [hook for hook in hooks if hook]

    def on_step(step: int, metrics: dict[str, float]) -> None:
        for hook in known:
            hook(step, metrics)

    return on_step if known else None
