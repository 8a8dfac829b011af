"""Measure if all labelled tokens of quotes are found, and how fast.

600 responses (half prose, half programs) are encoded, and a third of their tokens split again, so
that the ids differ from the tokenizer's, as sampled ids may. Random quotes go through render ->
parse -> align -> labels and are compared with a slow reference that decodes every prefix of the ids
and checks every character. Quotes that are not in the response must reward nothing.

    python benchmarks/align.py [--vocabulary 8000]

The last line of stdout is one JSON object. Targets: recall 1.0, exact_prose 300, exact_code 300,
absent_rewarded 0, responses_per_second (256 tokens, 6 spans, one thread) at least 5000.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from responses import code, prose, unique_spans
from text2grad.align import CreditSettings, TokenTable, credit, token_labels
from text2grad.feedback import Critique, Span
from text2grad.wire import parse, render

COUNT, SPANS, TOKENS, ROUNDS = 300, 6, 256, 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabulary", type=int, default=8000, help="tokens of the byte-level BPE")
    vocabulary: int = parser.parse_args().vocabulary
    texts = {"prose": prose(COUNT), "code": code(COUNT)}
    tokenizer = byte_level([*texts["prose"], *texts["code"]], vocabulary)
    began = time.perf_counter()
    table = TokenTable(tokenizer)
    report("token table", f"{len(tokenizer):,} ids in {time.perf_counter() - began:.2f} s")

    dice = random.Random(0)
    expected = matched = 0
    result: dict[str, float] = {}
    for kind, responses in texts.items():
        exact = 0
        for text in responses:
            truth, labels = labelled(text, table, tokenizer, dice)
            expected += sum(label != 0 for label in truth)
            matched += sum(a == b != 0 for a, b in zip(truth, labels, strict=True))
            exact += truth == labels
        result[f"exact_{kind}"] = exact
        report(f"{kind}: all labels right", f"{exact} of {len(responses)}")
    result["absent_rewarded"] = sum(rewards_absent(text, table, tokenizer, dice) for text in texts["prose"])
    texts_to_time = [*texts["prose"], *texts["code"]]
    result["responses_per_second"] = round(speed(texts_to_time, table, tokenizer, dice))
    result = {"recall": matched / expected, **result}
    report("labelled tokens found", f"{matched} of {expected}")
    report("absent quotes rewarded", f"{result['absent_rewarded']} of {COUNT}")
    report(f"responses of {TOKENS} tokens a second", f"{result['responses_per_second']:,}")
    print(json.dumps(result))


def report(what: str, value: str) -> None:
    print(f"{what:<34} {value}", file=sys.stderr)


def byte_level(texts: Sequence[str], vocabulary: int) -> Any:
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=["<eos>"], initial_alphabet=alphabet, show_progress=False
    )
    core.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<eos>")


def split_again(ids: Sequence[int], tokenizer: Any, dice: random.Random) -> list[int]:
    """Encode the same bytes with other tokens: a third are split if both halves are tokens."""
    again: list[int] = []
    for token, name in zip(ids, tokenizer.convert_ids_to_tokens(ids), strict=True):
        cut = dice.randrange(1, len(name)) if len(name) > 1 else 0
        halves = tokenizer.convert_tokens_to_ids([name[:cut], name[cut:]])
        again += halves if cut and None not in halves and dice.random() < 1 / 3 else [token]
    return again


def sampled(text: str, tokenizer: Any, dice: random.Random) -> list[int]:
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return [*split_again(ids, tokenizer, dice), tokenizer.eos_token_id]


def labelled(text: str, table: TokenTable, tokenizer: Any, dice: random.Random) -> tuple[list[int], list[int]]:
    """Return token labels by the slow reference, and by render -> parse -> align -> labels."""
    ids = sampled(text, tokenizer, dice)
    spans = unique_spans(text, SPANS, dice)
    judgement = parse(render(Critique(text="", spans=spans), text), text)
    assert isinstance(judgement, Critique), judgement.message
    labels = token_labels(judgement.spans, table.align(ids))
    return by_prefix(ids, spans, tokenizer), labels.tolist()


def by_prefix(ids: Sequence[int], spans: Sequence[Span], tokenizer: Any) -> list[int]:
    """Return labels by decoding every prefix, one character at a time."""
    full_text = tokenizer.decode(ids, skip_special_tokens=True)
    signs: list[set[int]] = [
        {
            span.label
            for span in spans
            if span.start <= place < span.end
            and full_text[span.start : place + 1].strip()
            and full_text[place : span.end].strip()
        }
        for place in range(len(full_text))
    ]
    labels, done = [], 0
    for count in range(1, len(ids) + 1):
        prefix = tokenizer.decode(ids[:count], skip_special_tokens=True)
        whole_characters = len(prefix.rstrip("\ufffd"))
        touched = range(done, len(prefix) if len(prefix) > whole_characters else whole_characters)
        labels.append(sum(set().union(*(signs[place] for place in touched))))
        done = whole_characters
    return labels


def rewards_absent(text: str, table: TokenTable, tokenizer: Any, dice: random.Random) -> bool:
    """True if a quote with a changed word, which is not in the response, rewards any token."""
    words = text.split()
    first = dice.randrange(len(words) - 4)
    quoted = words[first : first + 4]
    quoted[dice.randrange(4)] += "ly"
    quote = " ".join(quoted)
    assert quote not in text
    judgement = parse(json.dumps({"critique": "", "good_spans": [quote], "poor_spans": []}), text)
    assert isinstance(judgement, Critique), judgement.message
    rewards = credit(judgement, table.align(sampled(text, tokenizer, dice)), CreditSettings())
    return bool(rewards.delta.any()) or judgement.quotes.unmatched != 1


def speed(texts: Sequence[str], table: TokenTable, tokenizer: Any, dice: random.Random) -> float:
    """Return responses per second from ids to token rewards, the best of a few rounds."""
    cases = [long_case(texts, table, tokenizer, dice) for _ in range(1000)]
    settings = CreditSettings()
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for ids, critique in cases:
            credit(critique, table.align(ids), settings)
        best = min(best, time.perf_counter() - began)
    return len(cases) / best


def long_case(
    texts: Sequence[str], table: TokenTable, tokenizer: Any, dice: random.Random
) -> tuple[list[int], Critique]:
    ids: list[int] = []
    while len(ids) < TOKENS:
        ids = [*ids[:-1], *sampled("\n" + dice.choice(texts), tokenizer, dice)]
    ids = [*ids[: TOKENS - 1], ids[-1]]
    return ids, Critique(text="", spans=unique_spans(table.align(ids).text, SPANS, dice))


if __name__ == "__main__":
    main()
