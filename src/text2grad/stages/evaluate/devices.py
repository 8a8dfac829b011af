"""Sample the answers of an evaluation on all GPUs, with one process for each."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any

import torch

from text2grad.config import Config
from text2grad.durable.state import seed_everything
from text2grad.errors import UserError
from text2grad.feedback import Example
from text2grad.policy.episode import MakeEnvironment
from text2grad.policy.model import Policy
from text2grad.policy.settings import GenerationSettings
from text2grad.settings import with_values
from text2grad.stages.sampling import Sampled, sample
from text2grad.stages.training import prepare
from text2grad.tasks.base import get_environment_factory


def find_devices(name: str) -> list[str]:
    """Return all visible GPUs for `policy.device: auto`, otherwise `name` alone."""
    count = torch.cuda.device_count() if name == "auto" else 0
    return [f"cuda:{index}" for index in range(count)] or [name]


class DeviceSampler:
    """Samples as `sample` does: of n devices, each answers every n-th example.

    This process uses the first device. Each other device has a process with a copy of the policy of
    its own. The processes share no random numbers, so sampled answers depend on n.

    Args:
        target: the policy, as `RunFolder.load_policy` names it.
        devices: names of devices, the first is that of the policy in this process.
    """

    def __init__(self, config: Config, target: str, devices: Sequence[str]) -> None:
        self._pools = [ProcessPoolExecutor(1, get_context("spawn")) for _ in devices[1:]]
        self._loaded = [
            pool.submit(_load, with_values(config, {"policy.device": device}), target, config.run.seed + rank)
            for rank, (pool, device) in enumerate(zip(self._pools, devices[1:], strict=True), 1)
        ]

    def __enter__(self) -> DeviceSampler:
        return self

    def __exit__(self, *_: object) -> None:
        for pool in self._pools:
            pool.shutdown(cancel_futures=True)

    def __call__(
        self,
        policy: Policy,
        examples: Sequence[Example],
        generation: GenerationSettings,
        environment: MakeEnvironment | None = None,
    ) -> Sampled:
        """Sample one response per example (see `sample`).

        Raises:
            UserError: the policy does not fit on a device, or a process was killed.
        """
        count = len(self._pools) + 1
        answers: list[Any] = [None] * len(examples)
        try:
            parts = [
                pool.submit(_sample, examples[rank::count], generation) for rank, pool in enumerate(self._pools, 1)
            ]
            answers[::count] = sample(policy, examples[::count], generation, environment)
            for rank, (loaded, part) in enumerate(zip(self._loaded, parts, strict=True), 1):
                loaded.result()
                answers[rank::count] = part.result()
        except BrokenProcessPool as error:
            cure = "CUDA_VISIBLE_DEVICES=0 samples in one process"
            raise UserError("a process that samples on another device was killed", cure) from error
        return answers


# ---- in the process of a device

_POLICY: list[tuple[Policy, MakeEnvironment | None]] = []


def _load(config: Config, target: str, seed: int) -> None:
    run = prepare(config)  # with the seed of all, from which a tiny model is made
    _POLICY.append((run.load_policy(target), get_environment_factory(run.task())))
    seed_everything(seed)


def _sample(examples: Sequence[Example], generation: GenerationSettings) -> Sampled:
    [(policy, environment)] = _POLICY
    return sample(policy, examples, generation, environment)
