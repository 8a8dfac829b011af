# ruff: noqa: E402
"""What verl lacks on a CPU, for its own trainer in tests: `VERL_USE_EXTERNAL_MODULES=verl_cpu`, see
`verl_run`.

A platform without a device, a process group of gloo alone, and a rollout server of Hugging Face's
`generate`. The trainer, its workers, FSDP2, the value function, the sync of weights, checkpoints
and the agent loops are verl's.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import zlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

MODULES = os.environ.pop("VERL_USE_EXTERNAL_MODULES", "")  # those beside this one need its platform: at the end

import ray
import torch
import verl.utils.model
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry
from verl.utils import distributed
from verl.workers.rollout import base
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput

TURN = 8
"""Ids that a turn may have: a model which was never taught anything does not end one by itself."""


class NoDevice:
    """In the place of `torch.cuda`: nothing to wait for, no memory of its own."""

    def is_available(self) -> bool:
        return False

    def get_device_name(self) -> str:
        return "CPU"

    def mem_get_info(self) -> tuple[int, int]:
        return 0, 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_: 0


@PlatformRegistry.register("cpu")
class Cpu(type("Idle", (PlatformBase,), dict.fromkeys(PlatformBase.__abstractmethods__, lambda *_, **__: None))):
    """verl's platform of a machine without an accelerator; Ray counts processes as its GPUs."""

    device_name = vendor_name = "cpu"
    device_module = NoDevice()

    def is_available(self) -> bool:
        return True

    def current_device(self) -> str:
        return "cpu"

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False


class Server:
    """Generates for the requests of 20 ms at once. Asked for the n-th time at a step, a prompt gets
    the same ids, whatever else is asked."""

    def __init__(self, path: str) -> None:
        torch.set_num_threads(1)
        self.model = AutoModelForCausalLM.from_pretrained(path).eval()
        self.step, self.waiting, self.asked = 0, [], Counter()

    async def generate(self, *, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any) -> Any:
        self.waiting.append((prompt_ids, sampling_params["temperature"], answer := asyncio.Future()))
        if len(self.waiting) == 1:
            await asyncio.sleep(0.02)
            batch, self.waiting = self.waiting, []
            for (_, _, each), found in zip(batch, self.answers(batch), strict=True):
                each.set_result(found)
        return await answer

    @torch.no_grad()
    def answers(self, batch: Sequence[tuple[list[int], float, Any]]) -> list[Any]:
        prompts, width = [ids for ids, *_ in batch], max(len(ids) for ids, *_ in batch)
        noise = [self.generator(tuple(ids)) for ids in prompts]

        def sampled(
            ids: torch.Tensor, scores: torch.Tensor
        ) -> torch.Tensor:  # the largest of scores + Gumbel noise
            drawn = torch.stack([torch.rand(scores.shape[1], generator=each) for each in noise])
            hot = torch.tensor([[temperature] for _, temperature, _ in batch])
            return scores - hot * torch.log(-torch.log(drawn))

        made = self.model.generate(
            torch.tensor([[0] * (width - len(ids)) + ids for ids in prompts]),
            attention_mask=torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids in prompts]),
            **{"max_new_tokens": TURN, "do_sample": False, "logits_processor": [sampled], "pad_token_id": 0},
            **{"output_logits": True, "return_dict_in_generate": True},
        )
        logps = torch.log_softmax(torch.stack(made.logits, 1), -1)
        ids, end = made.sequences[:, width:], self.model.config.eos_token_id
        logps = logps.gather(2, ids[..., None])[..., 0]
        lengths = [row.index(end) + 1 if end in row else len(row) for row in ids.tolist()]
        return [
            TokenOutput(
                token_ids=ids[row, :length].tolist(),
                log_probs=logps[row, :length].tolist(),
                stop_reason="completed",
                extra_fields={"global_steps": self.step},
            )
            for row, length in enumerate(lengths)
        ]

    def generator(self, ids: tuple[int, ...]) -> torch.Generator:
        self.asked[ids] += 1
        return torch.Generator().manual_seed(zlib.crc32(repr((ids, self.step, self.asked[ids])).encode()))

    def update(self, weights: dict[str, torch.Tensor], step: int) -> None:
        self.model.load_state_dict(weights)
        self.step, self.asked = step, Counter()

    def sleep(self) -> None: ...


class Replica(RolloutReplica):
    """One server for each rank of the trainer."""

    async def launch_servers(self) -> None:
        name = self._server_address = f"hf_{self.replica_rank}"
        self._server_handle = ray.remote(Server).options(name=name).remote(self.model_config.path)
        self.servers = [self._server_handle]


class Weights:
    """In the trainer's worker: hands the weights of the step to the server of its rank."""

    def __init__(self, **_: Any) -> None:
        self.name = f"hf_{os.environ['RANK']}"

    async def update_weights(self, weights: Any, global_steps: int | None = None, **_: Any) -> None:
        await ray.get_actor(self.name).update.remote(dict(weights), global_steps or 0)

    async def resume(self, tags: list[str]) -> None: ...


def join(timeout_second: int | None = None, backend: str | None = None) -> None:
    """verl writes "cpu:gloo,<device>:<backend>", and torch refuses a device that is named twice."""
    JOIN(timeout_second, backend or "gloo")


def value_model(local_path: str, torch_dtype: Any, model_config: Any, trust_remote_code: bool) -> Any:
    """verl asks for flash attention here whatever `attn_implementation` says."""
    return AutoModelForTokenClassification.from_pretrained(local_path, dtype=torch_dtype, config=model_config)


JOIN, distributed.initialize_global_process_group_ray = distributed.initialize_global_process_group_ray, join
verl.utils.model.load_valuehead_model = value_model
torch.Tensor.pin_memory = lambda self, *_: self  # FSDP2 pins what the reference keeps on the CPU, for a GPU
base._ROLLOUT_REGISTRY["hf", "async"] = "verl_cpu.Weights"
RolloutReplicaRegistry.register("hf", lambda: Replica)
os.environ["VERL_USE_EXTERNAL_MODULES"] = MODULES
for name in MODULES.split(","):
    importlib.import_module(name or "verl_cpu")
