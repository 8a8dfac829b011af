"""Compare the token cost of labelling every word and of quoting spans (paper, Tables 2, 11, 14).

The same judged answers are written in both formats: as z with quotes, and as a label per word
(`render_words`), each with its prompt (`code_plain` and `dense`). Tokens of prompts and answers are
counted by a tokenizer.json, else words and punctuation are counted. `span_map` is z without the
critique's text and reasons: the part that both formats share.

    text2grad sft && text2grad annotate
    python -m text2grad_lab.paper.dense_cost runs/demo/feedback.jsonl [--prompt code_plain]
        [--tokenizer FILE]

The last line of stdout is one JSON object: `records`, mean tokens of `span_prompt`, `span_answer`,
`span_map`, `dense_prompt`, `dense_answer`, and the ratios dense : span of the answers
(`answer_ratio`, `map_ratio`) and of prompt and answer together (`ratio`).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

from text2grad import wire
from text2grad.critics.prompted import judge_messages
from text2grad.errors import exit_on_user_error
from text2grad.feedback import Critique, Feedback
from text2grad.jsonl import read_jsonl
from text2grad.stages.critics import load_prompt
from text2grad.unicode_words import units
from text2grad_lab.prompts.words import render_words

DENSE = "text2grad_lab.prompts:dense"
Tokenize = Callable[[str], list[tuple[int, int]]]
"""Splits a text into character intervals."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("feedback", type=Path)
    parser.add_argument("--prompt", default="code_plain")
    parser.add_argument("--tokenizer", type=Path)
    args = parser.parse_args()
    records = list(read_jsonl(args.feedback, Feedback))
    figures = costs(records, args.prompt, tokenize_by(args.tokenizer))
    for name, value in figures.items():
        print(f"{name:14} {value:10,.2f}")
    print(json.dumps(figures))


def tokenize_by(file: Path | None) -> Tokenize:
    """Split a text by a tokenizer.json, else into words and punctuation marks."""
    if file is None:
        return lambda text: list(units(text))
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(file))
    return lambda text: list(tokenizer.encode(text, add_special_tokens=False).offsets)


def costs(records: Sequence[Feedback], prompt: str, tokenize: Tokenize) -> dict[str, float]:
    """Return the mean tokens of a judged answer in both formats, and their ratios.

    Failed records are left out.
    """
    pairs = [(record, critique) for record in records if isinstance(critique := record.judgement(), Critique)]

    def prompt_tokens(name: str) -> float:
        prompt = load_prompt(name)
        conversations = [judge_messages(prompt.text, record.example(), record.response) for record, _ in pairs]
        return fmean(sum(len(tokenize(turn.content)) for turn in turns) for turns in conversations)

    def critique_tokens(write: Callable[[Critique, str], str]) -> float:
        return fmean(len(tokenize(write(critique, record.response))) for record, critique in pairs)

    tokens = {
        "records": float(len(pairs)),
        "span_prompt": prompt_tokens(prompt),
        "span_answer": critique_tokens(wire.render),
        "span_map": critique_tokens(lambda critique, response: wire.render(without_words(critique), response)),
        "dense_prompt": prompt_tokens(DENSE),
        "dense_answer": critique_tokens(render_words),
    }
    ratios = {f"{name}_ratio": tokens["dense_answer"] / tokens[f"span_{name}"] for name in ("answer", "map")}
    dense, span = (tokens[f"{name}_prompt"] + tokens[f"{name}_answer"] for name in ("dense", "span"))
    return tokens | ratios | {"ratio": dense / span}


def without_words(critique: Critique) -> Critique:
    """Remove the text and the reasons of a critique."""
    spans = tuple(span.model_copy(update={"reason": ""}) for span in critique.spans)
    return critique.model_copy(update={"text": "", "spans": spans})


if __name__ == "__main__":
    with exit_on_user_error():
        main()
