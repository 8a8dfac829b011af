"""Measure the memory of the KL over the full vocabulary, and of an update, in chunks and at once.

A small Llama with a large vocabulary scores 8 responses of 512 tokens against its reference: with
the chunks of `rl.vocabulary`, and with both log-softmax tensors in memory, each in a separate
process. The figure is the rise of the peak resident set over that with both models loaded.
`peak_ratio` divides our rise by the size of the two log-softmax tensors alone;
`measured_peak_ratio` divides by the measured rise. `--update` adds `update_*`: one forward and
backward pass of the log-probabilities, compared with the same from all logits.

    python benchmarks/full_kl.py [--update] [--vocabulary 128256] [--responses 8] [--tokens 512]

The last line of stdout is one JSON object. The values are compared in float32, token by token.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from responses import code, prose
from text2grad.policy.batch import TokenBatch, pack
from text2grad.policy.model import Policy
from text2grad.policy.tiny import make_tokenizer
from text2grad.rl import advantage as adv

ROOT = Path(__file__).resolve().parents[1]
SCORING, UPDATE = ("chunked", "whole"), ("chunked_update", "whole_update")
PROMPT, TEMPERATURE = 16, 0.7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabulary", type=int, default=128_256)
    parser.add_argument("--responses", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=512, help="of a response")
    parser.add_argument("--hidden", type=int, default=128, help="width of the model")
    parser.add_argument("--update", action="store_true", help="forward and backward of an update too")
    parser.add_argument("--inside", nargs=2, metavar=("WAY", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        print(json.dumps(measure(options)))
    else:
        print(json.dumps(compare(options)))


def compare(options: argparse.Namespace) -> dict[str, float]:
    """Run each way in a separate process; return their figures and differences."""
    results, values = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for way in (*SCORING, *(UPDATE if options.update else ())):
            file = Path(folder) / way
            command = [sys.executable, __file__, *sys.argv[1:], "--inside", way, str(file)]
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
            results[way] = json.loads(done.stdout.splitlines()[-1])
            values[way] = torch.load(file, weights_only=True)
            print(f"{way}: {results[way]}", file=sys.stderr)
    megabytes = 2 * options.responses * options.tokens * options.vocabulary * 4 / 2**20
    peaks = {way: result["peak_mb"] for way, result in results.items()}
    figures = {
        "peak_ratio": round(peaks["chunked"] / megabytes, 4),
        "max_abs_difference": difference(values["chunked"], values["whole"]),
        "mean_kl": round(float(values["whole"].mean()), 4),
        "measured_peak_ratio": round(peaks["chunked"] / peaks["whole"], 4),
        "both_log_softmax_mb": round(megabytes),
        **{f"{way}_peak_mb": round(peak) for way, peak in peaks.items()},
        **{f"{way}_cpu_s": each["cpu_s"] for way, each in results.items()},
    }
    if options.update:
        gradients = [values[way] for way in UPDATE]
        figures["update_peak_ratio"] = round(peaks["chunked_update"] / peaks["whole_update"], 4)
        figures["update_max_relative_difference"] = difference(*gradients) / float(gradients[1].abs().max())
    return figures


def difference(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).abs().max())


def measure(options: argparse.Namespace) -> dict[str, float]:
    """Measure one way: the rise of peak memory in MB and the CPU seconds; save its values."""
    way, file = options.inside
    policy, batch = make(options)
    before, start = resident_mb(), cpu_seconds()
    values = {
        "chunked": chunked, "whole": full_kl, "chunked_update": chunked_update, "whole_update": whole_update,
    }[way](policy, batch)  # fmt: skip
    figures = {"peak_mb": peak_mb() - before, "cpu_s": round(cpu_seconds() - start, 2)}
    torch.save(values, file)
    return figures


def make(options: argparse.Namespace) -> tuple[Policy, TokenBatch]:
    """Return a random policy that differs slightly from its reference, and random tokens."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=options.vocabulary,
        hidden_size=options.hidden,
        intermediate_size=2 * options.hidden,
        num_hidden_layers=1,
        num_attention_heads=4,
        max_position_embeddings=PROMPT + options.tokens,
        initializer_range=0.1,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    tokenizer = make_tokenizer([*prose(5), *code(5)], vocabulary=300)
    policy = Policy(LlamaForCausalLM(config), tokenizer).eval()
    policy.freeze_reference()
    with torch.no_grad():
        for parameter in policy.policy_parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    ids = torch.randint(1, options.vocabulary, (options.responses, PROMPT + options.tokens)).tolist()
    return policy, pack([row[:PROMPT] for row in ids], [row[PROMPT:] for row in ids], 0, "cpu")


def chunked(policy: Policy, batch: TokenBatch) -> Tensor:
    with torch.no_grad():
        kl = policy(batch, TEMPERATURE, kl="full").kl
    assert kl is not None
    return kl


def full_kl(policy: Policy, batch: TokenBatch) -> Tensor:
    """Compute the KL with both log-softmax tensors and no other large ones in memory."""
    parts = []
    with torch.no_grad():
        for model in (policy.model, policy.reference.model):
            parts.append(log_softmax(model, batch))
        return torch.stack([adv.kl_from_log_probs(log_p, log_ref) for log_p, log_ref in zip(*parts, strict=True)])


def log_softmax(model: LlamaForCausalLM, batch: TokenBatch) -> Tensor:
    """Return log p (B, T, V) from the model's own forward."""
    inputs = {"attention_mask": batch.attention_mask, "position_ids": batch.position_ids}
    logits = model(input_ids=batch.input_ids, logits_to_keep=batch.width + 1, use_cache=False, **inputs).logits
    return torch.log_softmax(logits[:, :-1].div_(TEMPERATURE), dim=-1)


def chunked_update(policy: Policy, batch: TokenBatch) -> Tensor:
    policy(batch, TEMPERATURE).logp.mean().backward()
    return policy.model.lm_head.weight.grad


def whole_update(policy: Policy, batch: TokenBatch) -> Tensor:
    adv.gather_tokens(log_softmax(policy.model, batch), batch.response_ids).mean().backward()
    return policy.model.lm_head.weight.grad


def peak_mb() -> float:
    """Return the peak resident set of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def resident_mb() -> float:
    """Return the current resident set of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
