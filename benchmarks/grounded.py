"""Measure grounded decoding: its cost, and whether its answers are always valid.

Speed: a batch of 32 greedy critiques of 160 tokens by an untrained model of the demo's size (or by
a trained one in a model folder), alternating with and without the mask. `ratio` is the ratio of the
medians, and `ratio_cpu` the same in CPU seconds (all threads), which other load disturbs less.
Validity: random draws from an untrained model about hostile responses; an answer is invalid unless
it ends in time, `wire.parse` reads it, and every quote in it resolves.

    python benchmarks/grounded.py [--rounds 5] [--draws 1000]

The last line of stdout is one JSON object. Targets: ratio >= 0.70, invalid 0 of 1000 draws.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from responses import code, prose
from text2grad.feedback import Failure, Message
from text2grad.policy.encode import encode_prompt
from text2grad.policy.generate import generate
from text2grad.policy.grounded import GroundedAnswers, Vocabulary, make_vocabulary
from text2grad.policy.load import load_policy
from text2grad.policy.local_chat import LocalChat
from text2grad.policy.model import Policy
from text2grad.policy.settings import GenerationSettings, PolicySettings
from text2grad.policy.tiny import make_tiny_model
from text2grad.wire import parse

BATCH, TOKENS, CONTEXT = 32, 160, 16_384


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--draws", type=int, default=1000)
    options.add_argument("--model", type=Path, help="a trained reward model's folder, for the speed")
    args = options.parse_args()
    torch.set_num_threads(1)
    untrained = random_policy()
    timed = load_policy(PolicySettings(model=str(args.model))) if args.model else untrained
    plain, grounded, ratio_cpu = speeds(timed, args.rounds)
    invalid = invalid_answers(untrained, args.draws)
    figures = {
        "tokens_per_second_plain": round(plain, 1),
        "tokens_per_second_grounded": round(grounded, 1),
        "ratio": round(grounded / plain, 3),
        "ratio_cpu": round(ratio_cpu, 3),
        "invalid": invalid,
        "draws": args.draws,
    }
    print(json.dumps(figures))


def random_policy() -> Policy:
    """The demo's model, untrained, over a tokenizer made of the responses and of the format."""
    texts = [*prose(200), *code(200), '{"critique": "", "good_spans": [""], "poor_spans": [""], "score": 1.0}'] * 2
    with tempfile.TemporaryDirectory() as folder:
        make_tiny_model(Path(folder), texts, context=CONTEXT)
        return load_policy(PolicySettings(model=folder))


def speeds(policy: Policy, rounds: int) -> tuple[float, float, float]:
    """Tokens a second without and with the mask, and their ratio by seconds of CPU; medians of
    interleaved rounds.

    Every step counts for all rows, those that have ended too.
    """
    texts = [*prose(BATCH // 2), *code(BATCH // 2)]
    prompts = [encode_prompt(policy.tokenizer, [Message(role="user", content=text)]) for text in texts]
    settings = GenerationSettings(max_new_tokens=TOKENS, temperature=0.0, batch_size=BATCH)
    vocabulary = make_vocabulary(policy, "on")
    assert vocabulary is not None
    rates: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    for turn in range(2 * rounds + 2):
        masked = turn % 2 == 1
        began, began_cpu = time.perf_counter(), time.process_time()
        constraint = GroundedAnswers(vocabulary, texts, settings) if masked else None
        tokens = BATCH * max(len(sample.ids) for sample in generate(policy, prompts, settings, constraint))
        if turn > 1:  # the first of each warms up
            seconds, cpu = time.perf_counter() - began, time.process_time() - began_cpu
            rates[masked].append((tokens / seconds, tokens / cpu))
    print(f"tokens a second, and a second of CPU: plain {rates[False]}, grounded {rates[True]}", file=sys.stderr)
    (plain, plain_cpu), (grounded, grounded_cpu) = (
        map(statistics.median, zip(*rates[masked], strict=True)) for masked in (False, True)
    )
    return plain, grounded, grounded_cpu / plain_cpu


def hostile() -> list[str]:
    """Responses made to be misquoted."""
    return [
        "",
        "a",
        '"',
        "\\",
        "\n",
        "  \n\n ",
        'She said "yes", "no", and "maybe". "yes", "no"!',
        'C:\\new\\table \\" \\\\ \t\r\n\x00\x1f\x7f end\\',
        "🙂🙂 👩‍💻 naïve façade 日本語の文章です。ไทย Привет, мир! 🙂",
        '{"critique": "x", "good_spans": [{"quote": "a", "occurrence": 2}, "b"], "poor_spans": [], "score": 1.0}',
        '"a", "occurrence": 2}, "part": true, "reason": "x", "a", "b", "a"',
        "the cat the cat the cat the cat",
        "a" * 300,
        ("The end is near. " * 20).strip(),
        'def f(x):\n    return dp[i-1][j] + dp[i][j-1]\n\n\ndef f(x):\n    return [\'a\', "b", "c"]\n',
        "a\r\nb\u2028c\x85d\u00a0 e",
        "\n\n".join(prose(200))[:13000],  # over 4,000 tokens
        "\n".join(code(30)),
    ]


def invalid_answers(policy: Policy, draws: int) -> int:
    """Count random answers that do not end, are unreadable, or have unmatched quotes."""
    texts = hostile()
    responses = [texts[index % len(texts)] for index in range(draws)]
    longest = max(len(policy.tokenizer(text)["input_ids"]) for text in texts)
    print(f"{len(texts)} hostile responses, the longest of {longest} tokens", file=sys.stderr)
    invalid = 0
    for limit, temperature in ((64, 1.0), (160, 1.0), (256, 2.0)):
        share = responses[: draws // 3] if limit < 256 else responses[: draws - 2 * (draws // 3)]
        invalid += _invalid(policy, share, limit, temperature)
    return invalid


def _invalid(policy: Policy, responses: Sequence[str], limit: int, temperature: float) -> int:
    settings = GenerationSettings(max_new_tokens=limit, temperature=temperature, batch_size=BATCH)
    chat = LocalChat(policy, settings, "untrained", Vocabulary(policy.tokenizer, policy.model.config.vocab_size))
    ask = [[Message(role="user", content="Judge it.")]] * len(responses)
    wrong = 0
    for answer, response in zip(chat.complete_about(ask, responses), responses, strict=True):
        if isinstance(answer, Failure) or answer.truncated:
            wrong += 1
            continue
        critique = parse(answer.text, response)
        wrong += isinstance(critique, Failure) or bool(critique.quotes.unmatched or critique.quotes.ambiguous)
    return wrong


if __name__ == "__main__":
    main()
