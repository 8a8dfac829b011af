"""Compare the time of our sampling loop and transformers' `generate` on the same inputs.

Both are greedy and must write the same ids. Responses end at random lengths (`ragged`), or all at
the limit (`full`). The two alternate on one thread; figures are CPU seconds, medians of --runs.

    python benchmarks/generate.py [--runs 5] [--responses 64] [--tokens 64]

The last line of stdout is one JSON object: `full` and `ragged`, each with `ours`, `transformers`
(CPU seconds) and `ratio` (ours / transformers).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from statistics import median

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from steps import Load, Shape, random_policy
from text2grad.policy.batch import pack
from text2grad.policy.encode import stop_ids
from text2grad.policy.generate import generate
from text2grad.policy.model import Policy
from text2grad.policy.settings import GenerationSettings

SHAPE = Shape(hidden=256, layers=4, heads=4, feed_forward=688, vocabulary=2048)
Ids = list[list[int]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--responses", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=64)
    args = parser.parse_args()
    torch.set_num_threads(1)
    load = Load(responses=args.responses, tokens=args.tokens)
    policy = random_policy(SHAPE, load, lora=False, device=torch.device("cpu"))
    prompts = torch.randint(5, 400, (load.responses, load.prompt)).tolist()
    drawn = torch.randint(4, load.tokens + 1, (load.responses,)).tolist()
    lengths = {"full": [load.tokens] * load.responses, "ragged": drawn}
    print(json.dumps({name: compared(policy, prompts, ends, args.runs) for name, ends in lengths.items()}))


def compared(policy: Policy, prompts: Ids, ends: Sequence[int], runs: int) -> dict[str, float]:
    """Median CPU seconds of both, in turns.

    Raises:
        SystemExit: they did not write the same.
    """
    ways: dict[str, Callable[[Policy, Ids, Sequence[int]], Ids]] = {"ours": ours, "transformers": theirs}
    if ours(policy, prompts, ends) != theirs(policy, prompts, ends):
        raise SystemExit("the two loops did not write the same ids")
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(runs):
        for name, way in ways.items():
            before = time.process_time()
            way(policy, prompts, ends)
            seconds[name].append(time.process_time() - before)
    medians = {name: round(median(values), 3) for name, values in seconds.items()}
    return medians | {"ratio": round(medians["ours"] / medians["transformers"], 3)}


def ours(policy: Policy, prompts: Ids, ends: Sequence[int]) -> Ids:
    stop = min(stop_ids(policy.tokenizer))
    settings = GenerationSettings(max_new_tokens=max(ends), temperature=0.0, batch_size=len(prompts))

    step = [0]

    def constraint(answers: Sequence[int], last: Sequence[int], scores: Tensor) -> Tensor:
        step[0] += 1
        return ended(scores, stop, [step[0] == ends[answer] for answer in answers])

    return [sample.ids for sample in generate(policy, prompts, settings, constraint)]


def theirs(policy: Policy, prompts: Ids, ends: Sequence[int]) -> Ids:
    stop = min(stop_ids(policy.tokenizer))
    batch = pack(prompts, [[]] * len(prompts), int(policy.tokenizer.pad_token_id), policy.device)
    width = batch.input_ids.shape[1]

    class Ends(LogitsProcessor):  # type: ignore[misc]
        def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
            return ended(scores, stop, [input_ids.shape[1] - width + 1 == end for end in ends])

    with torch.no_grad():
        written = policy.model.generate(
            input_ids=batch.input_ids,
            attention_mask=batch.attention_mask,
            max_new_tokens=max(ends),
            do_sample=False,
            eos_token_id=stop,
            pad_token_id=int(policy.tokenizer.pad_token_id),
            logits_processor=LogitsProcessorList([Ends()]),
        )
    return [row[width : width + end] for row, end in zip(written.tolist(), ends, strict=True)]


def ended(scores: Tensor, stop: int, over: Sequence[bool]) -> Tensor:
    """The scores, where only `stop` can come in rows that are over, and never in others."""
    ends = torch.tensor(over)
    scores = scores.clone()
    stop_scores = scores[:, stop].clone()
    scores[ends] = float("-inf")
    scores[:, stop] = torch.where(ends, stop_scores, float("-inf"))
    return scores


if __name__ == "__main__":
    main()
