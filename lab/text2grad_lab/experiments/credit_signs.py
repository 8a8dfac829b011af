"""Compare the signs of a method's token advantages with the tests' verdicts on the same tokens.

PPO runs keep strips: training answers with tokens and advantages, every few steps. The `program`
critic, which runs the tests and compares with the reference, marks right and wrong tokens of those
answers; training did not use these marks. An advantage has the wrong sign if it makes a right token
less likely, or a wrong one more likely.

    python -m text2grad_lab.experiments.credit_signs RUN ... [--runs runs/compared] [--seeds 0 1 2]
        [--answer ID --figure FILE]

RUN is a run's folder below seed-N/ppo: `text2grad`, `scalar`. The last line of stdout is one JSON
object: run -> kind of token -> `tokens`, `wrong_sign` (share of them) and `push` (mean advantage in
the right direction; a step's root mean square is 1 unless `ppo.normalisation` is `none`), over all
seeds. Kinds: `passing` (all tokens in answers that pass),
`right` and `wrong` (marked tokens in answers that fail). With --figure the first strips of the
training problem ID in the first seed's runs are drawn as well.
"""

from __future__ import annotations

import argparse
import json
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from text2grad.align import Aligned, token_labels
from text2grad.config import load_config
from text2grad.errors import exit_on_user_error
from text2grad.feedback import Critique
from text2grad.stages.critics import critic_factory
from text2grad.stages.run_folder import RunFolder
from text2grad_lab.experiments.options import experiment_parser

KINDS = ("passing", "right", "wrong")
CHARACTER, ROW, MARGIN = 7.8, 19.0, 14.0  # of a fixed-width font of 13 units
UP, DOWN = "11,110,79", "190,40,30"
SignedAdvantages = tuple[str, np.ndarray]  # a kind, and (n,) advantages times the label of their tokens


def main() -> None:
    args = options()
    os.environ["OMP_NUM_THREADS"] = "1"
    values: dict[str, dict[str, list[np.ndarray]]] = {name: defaultdict(list) for name in args.names}
    for seed in args.seeds:
        for name, kind, signed in signed_advantages(args.runs, seed, args.names):
            values[name][kind].append(signed)
    figures = {name: {kind: summary(kinds[kind]) for kind in KINDS} for name, kinds in values.items()}
    if args.figure:
        drawn = tokens_svg([strip_of(args, name) for name in args.names])
        args.figure.write_text(drawn, encoding="utf-8")
    print(json.dumps(figures))


def options() -> argparse.Namespace:
    parser = experiment_parser(__doc__, "credit_signs")
    parser.add_argument("names", nargs="+", metavar="RUN")
    parser.add_argument("--runs", type=Path, default=Path("runs/compared"))
    parser.add_argument("--answer", metavar="ID", help="a training problem whose strips are drawn: train-261")
    parser.add_argument("--figure", type=Path, metavar="FILE")
    args = parser.parse_args()
    if bool(args.answer) != bool(args.figure):
        parser.error("--answer and --figure need each other")
    return args


def strips_of(runs: Path, seed: int, name: str) -> list[dict[str, Any]]:
    path = runs / f"seed-{seed}" / "ppo" / name / "samples.jsonl"
    if not path.is_file():
        raise SystemExit(f"no {path} (python -m text2grad_lab compare --run.folder {runs})")
    strips = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [strip for strip in strips if not strip.get("probe")]  # the policy does not learn from probes


def strip_of(args: argparse.Namespace, name: str) -> Strip:
    """Return the first strip of one problem, with its advantages."""
    strips = strips_of(args.runs, args.seeds[0], name)
    if not (matches := [strip for strip in strips if strip["id"] == args.answer]):
        raise SystemExit(
            f"{name} has no strip of {args.answer} (available: {', '.join(s['id'] for s in strips[:8])} ...)"
        )
    return Strip(
        f"{name.partition('-')[0]}, step {matches[0]['step'] + 1}", matches[0]["tokens"], matches[0]["advantage"]
    )


def signed_advantages(runs: Path, seed: int, names: list[str]) -> Iterator[tuple[str, str, np.ndarray]]:
    """Yield the marked tokens of one seed's strips: run, kind, advantages times labels."""
    config = load_config(runs / f"seed-{seed}" / "done" / f"{names[0]}.yaml")
    examples = {example.id: example for example in RunFolder.of(config).task().examples("train")}
    with critic_factory(config, "program") as factory, factory.open() as critic:
        for name in names:
            strips = strips_of(runs, seed, name)
            judgements = critic.critique([examples[s["id"]] for s in strips], [s["response"] for s in strips])
            for strip, verdict in zip(strips, judgements, strict=True):
                if isinstance(verdict, Critique):
                    yield from ((name, *pair) for pair in tokens_of(strip, verdict))


def tokens_of(strip: dict[str, Any], verdict: Critique) -> Iterator[SignedAdvantages]:
    """Yield kinds of marked tokens with their advantages, positive in the right direction."""
    if strip["failure"]:  # not judged, so the policy did not learn from it
        return
    aligned = Aligned.of(strip["response"], np.array(strip["starts"]), np.array(strip["ends"]))
    labels, advantages = token_labels(verdict.spans, aligned), np.array(strip["advantage"])
    if verdict.score is not None and verdict.score > 0:
        yield "passing", advantages[labels > 0]
    else:
        yield "right", advantages[labels > 0]
        yield "wrong", -advantages[labels < 0]


def summary(signed: list[np.ndarray]) -> dict[str, float]:
    advantages = np.concatenate(signed) if signed else np.zeros(0)
    if not advantages.size:
        return {"tokens": 0}
    wrong, push = float((advantages < 0).mean()), float(advantages.mean())
    return {"tokens": int(advantages.size), "wrong_sign": round(wrong, 4), "push": round(push, 3)}


class Strip(NamedTuple):
    """The texts of an answer's tokens, and a number for each."""

    title: str
    tokens: Sequence[str]
    numbers: Sequence[float]


def tokens_svg(strips: Sequence[Strip]) -> str:
    """Return an SVG of the answers with token backgrounds: green above 0, red below."""
    parts: list[str] = []
    y, width = MARGIN, 0.0
    for strip in strips:
        y += ROW
        parts.append(f'<text x="{MARGIN}" y="{y - 6}" font-family="sans-serif">{escape(strip.title)}</text>')
        largest = max(map(abs, strip.numbers), default=0.0) or 1.0
        x = MARGIN
        for token, number in zip(strip.tokens, strip.numbers, strict=True):
            colour = f"rgba({UP if number > 0 else DOWN},{0.7 * abs(number) / largest:.2f})"
            for n, piece in enumerate(token.split("\n")):
                x, y = (MARGIN, y + ROW) if n else (x, y)
                if piece:
                    wide = len(piece) * CHARACTER
                    at, size = f'x="{x:.1f}" y="{y}"', f'width="{wide:.1f}" height="{ROW - 2}"'
                    parts.append(f'<rect {at} {size} fill="{colour}"/>')
                    if piece.strip():
                        at = f'x="{x:.1f}" y="{y + 13}" textLength="{wide:.1f}" xml:space="preserve"'
                        parts.append(f"<text {at}>{escape(piece)}</text>")
                    x, width = x + wide, max(width, x + wide)
        y += ROW
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width + MARGIN:.0f} {y:.0f}" '
        'font-family="monospace" font-size="13"><rect width="100%" height="100%" fill="white"/>'
    )
    return "\n".join([head, *parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    with exit_on_user_error():
        main()
