"""Speed of sampling by our loop and by transformers, and a check that both sample the same policy.

Random Llamas of the shapes of SmolLM2-135M and of a 1B Llama (bfloat16 on a GPU), so nothing is
downloaded. `sample` writes answers that do not end early, twice: the first time may capture CUDA
graphs or compile. Then, in float32, the log-probabilities that a way reports are compared with a
plain forward, before and after a change of the weights: a way that keeps old keys and values is
wrong there. `trl` takes two steps of `train --engine trl` with adapters and measures the second.

    python benchmarks/sampling.py sample --way batched --model 1b
    python benchmarks/sampling.py trl --way loop --model 1b
    OUT=figures.jsonl bash benchmarks/gpu.sh

Ways: `loop`, `batched` (continuous batching with sdpa), `batched_graphs` (the same with CUDA
graphs), `static_graphs` (a static cache, whose steps transformers compiles into CUDA graphs on a
GPU). benchmarks/gpu.sh runs all of them, each with a time limit, in ten minutes on one GPU; with
--tiny in a minute on a CPU.

The last line of stdout is one JSON object: `piece`, `way`, `model`, `device`, and `first_seconds`,
`tokens_per_second` (the second time), `memory_gb`, `difference` and `difference_after_update` (the
largest, in nats); of `trl` `step_seconds` and the seconds of its phases.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import GenerationConfig, LlamaForCausalLM
from transformers.generation import ContinuousBatchingConfig

from gpu_train import SHAPES, clock
from responses import code, prose
from steps import Load, Shape
from text2grad.cli import main as text2grad
from text2grad.feedback import Critique, Example, Judgement, Source, Span
from text2grad.policy.generate import generate
from text2grad.policy.model import Policy
from text2grad.policy.settings import GenerationSettings
from text2grad.policy.tiny import make_tokenizer

MODELS = {**SHAPES, "smollm2": Shape(576, 30, 9, 1536, 49_152, 3)}
LOADS = {"tiny": Load(responses=8, prompt=24, tokens=8), "smollm2": Load(responses=256, prompt=128, tokens=256)}
LOADS["1b"] = LOADS["smollm2"]
COMPARED = 8
"""Answers whose log-probabilities are compared, of `COMPARED_TOKENS` at most."""
COMPARED_TOKENS = 32
CHANGE = 0.05
"""Relative change of each weight: an update that visibly moves log-probabilities."""

Ids = list[list[int]]


class Generated(NamedTuple):
    """Answers, and the log-probabilities of their tokens; empty where not asked for."""

    ids: Ids
    logps: list[list[float]]


Way = Callable[[Any, Ids, int, bool], Generated]
"""A function of a model, prompts, tokens of an answer, and whether log-probabilities are
returned."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("piece", choices=["sample", "trl"])
    parser.add_argument("--way", choices=list(WAYS), required=True)
    parser.add_argument("--model", choices=list(LOADS), required=True)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        torch.set_num_threads(1)
    measured = sampling if options.piece == "sample" else step_of_trl
    figures = measured(options.way, options.model, device)
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    print(json.dumps({**vars(options), "device": where, **figures}))


# Sampling -----------------------------------------------------------------------------------------


def sampling(way: str, name: str, device: torch.device) -> dict[str, float]:
    """Measure the rate of one way, and the error of its log-probabilities against a forward."""
    load, write = LOADS[name], WAYS[way]
    model = random_model(MODELS[name], load, device)
    draw = torch.Generator().manual_seed(1)
    prompts = torch.randint(5, 400, (load.responses, load.prompt), generator=draw).tolist()
    seconds = []
    for _ in range(2):
        start = clock()
        answers = write(model, prompts, load.tokens, False).ids
        seconds.append(clock() - start)
        if any(len(ids) != load.tokens for ids in answers) or len(answers) != len(prompts):
            raise SystemExit(f"{way} did not write {load.tokens} tokens to each of {len(prompts)} prompts")
    figures = {
        "first_seconds": round(seconds[0], 2),
        "tokens_per_second": round(load.responses * load.tokens / seconds[1], 1),
    }
    if device.type == "cuda":
        figures["memory_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 2)
    if hasattr(model, "_cached_continuous_batching_manager"):
        model.destroy_cached_continuous_batching_manager()
    model.float()
    plain = random_model(MODELS[name], load, device).float()
    compared, tokens = prompts[:COMPARED], min(load.tokens, COMPARED_TOKENS)
    for figure in ("difference", "difference_after_update"):
        plain.load_state_dict(model.state_dict())
        figures[figure] = difference(plain, compared, write(model, compared, tokens, True))
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(1 + CHANGE * torch.randn_like(weight))
    if hasattr(model, "_cached_continuous_batching_manager"):
        model.destroy_cached_continuous_batching_manager()
    return figures


def random_model(shape: Shape, load: Load, device: torch.device) -> Any:
    """Make a model whose answers do not end by themselves, in bfloat16 on a GPU, else float32."""
    torch.manual_seed(0)
    with device:
        model = LlamaForCausalLM(shape.config(load.context))
    model.generation_config = GenerationConfig(eos_token_id=None, pad_token_id=0)
    return model.to(device, torch.bfloat16 if device.type == "cuda" else torch.float32).eval()


def difference(model: Any, prompts: Ids, generated: Generated) -> float:
    """Return the largest difference in nats between the log-probabilities and those of a
    forward."""
    ids = torch.tensor([prompt + answer for prompt, answer in zip(prompts, generated.ids, strict=True)])
    ids, width = ids.to(model.device), len(generated.ids[0])
    with torch.no_grad():
        logps = model(input_ids=ids, logits_to_keep=width + 1).logits[:, :-1].float().log_softmax(dim=-1)
    expected = logps.gather(2, ids[:, -width:, None])[..., 0].cpu()
    return float((expected - torch.tensor(generated.logps)).abs().max())


def loop(model: Any, prompts: Ids, tokens: int, with_logps: bool) -> Generated:
    """Sample by our own loop (`policy.generate`)."""
    policy = Policy(model, make_tokenizer([*prose(20), *code(20)], vocabulary=500)).eval()
    stops = torch.tensor(policy.stop_ids, device=policy.device)
    states: list[list[Tensor]] = [[] for _ in prompts]

    def never_ends(rows: Sequence[int], last: Sequence[int], scores: Tensor) -> Tensor:
        for row, of_row in zip(rows, scores, strict=True) if with_logps else ():
            states[row].append(of_row.float().log_softmax(dim=-1))
        return scores.index_fill(1, stops, float("-inf"))

    settings = GenerationSettings(max_new_tokens=tokens, batch_size=len(prompts))
    ids = [sample.ids for sample in generate(policy, prompts, settings, never_ends)]
    steps = zip(states, ids, strict=True) if with_logps else ()
    return Generated(ids, [[float(logps[token]) for logps, token in zip(*row, strict=True)] for row in steps])


def batched(model: Any, prompts: Ids, tokens: int, with_logps: bool, graphs: bool = False) -> Generated:
    """Sample by continuous batching.

    The manager stays from one call to the next, so graphs are captured once. Blocks are not shared:
    a shared one would keep the keys and values of old weights.
    """
    on_cpu = model.device.type == "cpu"
    size = {"num_blocks": 64, "max_batch_tokens": 256} if on_cpu else {"max_memory_percent": 0.5}
    config = ContinuousBatchingConfig(
        allow_block_sharing=False,
        auto_switch_to_flash=False,
        use_cuda_graph=graphs,
        use_async_batching=False if on_cpu else None,
        return_logprobs=with_logps,
        **size,
    )
    outputs = model.generate_batch(
        prompts,
        generation_config=full_distribution(tokens),
        continuous_batching_config=config,
        persistent_manager=True,
    )
    answers = outputs.values()
    return Generated([answer.generated_tokens for answer in answers], [answer.logprobs for answer in answers])


def static_graphs(model: Any, prompts: Ids, tokens: int, with_logps: bool) -> Generated:
    """Sample with a static cache; on a GPU transformers compiles its steps into CUDA graphs."""
    ids = torch.tensor(prompts, device=model.device)
    options = {"return_dict_in_generate": True, "output_logits": with_logps}
    with torch.no_grad():
        output = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            generation_config=full_distribution(tokens, cache_implementation="static", **options),
        )
    answers = output.sequences[:, ids.shape[1] :]
    if not with_logps:
        return Generated(answers.tolist(), [])
    logps = torch.stack([logits.float().log_softmax(dim=-1) for logits in output.logits], dim=1)
    return Generated(answers.tolist(), logps.gather(2, answers[..., None])[..., 0].tolist())


def full_distribution(tokens: int, **options: Any) -> GenerationConfig:
    """Sample from the full distribution at temperature 1, as training needs it."""
    full = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    return GenerationConfig(max_new_tokens=tokens, eos_token_id=None, pad_token_id=0, **full, **options)


WAYS: dict[str, Way] = {
    "loop": loop,
    "batched": batched,
    "batched_graphs": partial(batched, graphs=True),
    "static_graphs": static_graphs,
}

# A step of TRL's trainer --------------------------------------------------------------------------


class Praises:
    """A critic that praises every `e`, at no cost."""

    source = Source(kind="program", model="more e")

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        return [self.judge(text) for text in responses]

    def judge(self, text: str) -> Critique:
        places = [place for place, letter in enumerate(text) if letter == "e"]
        spans = tuple(Span(start=place, end=place + 1, label=1, text="e") for place in places)
        return Critique(text="", spans=spans, score=len(places) / max(1, len(text)))


def step_of_trl(way: str, name: str, device: torch.device) -> dict[str, float]:
    """Measure the second step of `train --engine trl` by phase, with or without continuous
    batching."""
    load = Load(responses=8, prompt=200, tokens=8) if name == "tiny" else Load(responses=64, prompt=512, tokens=128)
    model = random_model(MODELS[name], load, device)
    with tempfile.TemporaryDirectory() as folder:
        start = Path(folder) / "start"
        model.save_pretrained(start)
        make_tokenizer([*prose(20), *code(20)], vocabulary=500).save_pretrained(start)
        del model
        trl: dict[str, Any] = {"use_transformers_continuous_batching": way == "batched"}
        if way == "batched":
            trl["transformers_continuous_batching_config"] = {"allow_block_sharing": False}
            if device.type == "cpu":
                small = {"num_blocks": 64, "max_batch_tokens": 256, "use_async_batching": False}
                trl["transformers_continuous_batching_config"] |= small
        config = {
            "run": {"folder": f"{folder}/run", "threads": 1 if device.type == "cpu" else None},
            "task": {"name": "demo", "limit": 64},
            "policy": {
                "model": str(start),
                "lora": {"r": 16, "dropout": 0.0},
                "dtype": "bfloat16" if device.type == "cuda" else "float32",
            },
            "critic": {"kind": "sampling:Praises"},
            "ppo": {
                **{"steps": 2, "rollouts": load.responses, "samples_per_prompt": 8, "epochs": 1, "lr": 1e-6},
                **{"micro_batch_size": load.rows, "advantage": "group", "max_kl": None},
            },
            "generation": {"max_new_tokens": load.tokens},
            "engine": {"name": "trl", "trl": trl},
        }
        file = Path(folder) / "step.yaml"
        file.write_text(json.dumps(config), encoding="utf-8")
        start_time = time.perf_counter()
        try:
            text2grad(["train", "--config", str(file)])
        except SystemExit as ended:
            if ended.code:
                raise
        seconds = time.perf_counter() - start_time
        [log] = Path(folder).glob("run/ppo/*/metrics.jsonl")
        last = json.loads(log.read_text(encoding="utf-8").splitlines()[-1])
    phases = {phase: round(value, 2) for phase, value in last.items() if phase.startswith("seconds_")}
    return {"all_seconds": round(seconds, 1), "step_seconds": round(sum(phases.values()), 2), **phases}


if __name__ == "__main__":
    sys.modules["sampling"] = sys.modules["__main__"]  # the critic is found by this name
    main()
