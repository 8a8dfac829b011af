"""Our part inside verl's processes: an agent loop that asks our critic, and a trainer with our
advantages.

verl imports this wherever it runs (`VERL_USE_EXTERNAL_MODULES`); its configuration has a section
`text2grad`, which `engines.verl` writes.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any
from uuid import uuid4

from text2grad.align import CreditSettings, TokenTable
from text2grad.align.critic_queue import CriticQueue
from text2grad.align.rewards import get_table
from text2grad.durable.log import LOGS, append_line, truncate_log
from text2grad.engines.experience import Judged, Trajectory, lost, scored
from text2grad.engines.verl import NAME, PROBLEM
from text2grad.errors import UserError, optional_packages
from text2grad.feedback import Critic, Example, count_critic_tokens
from text2grad.named import load_named
from text2grad.policy.encode import encode_prompt, stop_ids
from text2grad.policy.episode import Dialogue, Episode, MakeEnvironment, decode_sample
from text2grad.policy.generate import Sample
from text2grad.policy.settings import GenerationSettings
from text2grad.train.ppo import SAMPLES_EVERY, STRIPS
from text2grad.train.ppo_settings import PPOSettings
from text2grad.train.report import compute_metrics, is_due, token_strips

with optional_packages():
    import ray
    import torch
    import transfer_queue
    from tensordict import TensorDict
    from transformers import GenerationConfig
    from verl.experimental.agent_loop import AgentLoopBase, AgentLoopOutput
    from verl.trainer.ppo.core_algos import register_adv_est
    from verl.trainer.ppo.v1 import PPOTrainerSync, register_trainer
    from verl.workers.utils.padding import response_from_nested

CRITIC_SECONDS, CRITIC_RETRIES, IN_FLIGHT = 600.0, 2, 64
UPDATED = {
    "actor/pg_loss": "policy_loss",
    "actor/pg_clipfrac": "clip_fraction",
    "actor/grad_norm": "grad_norm",
    "critic/vf_loss": "value_loss",
    "timing_s/gen": "seconds_generate",
    "timing_s/update_actor": "seconds_update",
    "timing_s/update_weights": "seconds_weights",
}
"""verl's metrics that have a name in the local loop's, or are worth one."""
SCORED = ("timing_s/old_log_prob", "timing_s/ref", "timing_s/values", "timing_s/adv")


# The agent loop: in verl's rollout workers --------------------------------------------------------


@dataclass
class Parts:
    """The critic, its queue and the maker of environments, shared by all trajectories of a
    worker."""

    critic: Critic
    queue: CriticQueue
    make: MakeEnvironment | None
    counted: float = 0.0

    def new_tokens(self) -> float:
        """Tokens that the critic has read and written since the last call."""
        before, self.counted = self.counted, count_critic_tokens(self.critic)
        return self.counted - before


@contextmanager
def reporting(folder: Path, *kinds: type[Exception]) -> Iterator[None]:
    """Write an error to the run's folder, since verl loses what a worker raises."""
    try:
        yield
    except kinds as error:
        line = {"problem": getattr(error, "problem", str(error)), "cure": getattr(error, "cure", "")}
        (folder / PROBLEM).write_text(json.dumps(line), encoding="utf-8")
        raise


@cache
def parts_of(folder: Path, critic: str, environment: str, working_folder: str) -> Parts:
    """Make critic and environment of the settings in a folder, once for each worker."""
    os.chdir(working_folder)  # relative paths and modules of the user's own are looked up there
    settings = folder / "settings.yaml"
    with reporting(folder, Exception):
        made = made_by("critic", critic)(settings, folder)
        make = made_by("environment", environment)(settings) if environment else None
    return Parts(made, CriticQueue(made, CRITIC_SECONDS, CRITIC_RETRIES, IN_FLIGHT), make)


def made_by(what: str, name: str) -> Callable[..., Any]:
    """Return the function that a name stands for."""
    function: Callable[..., Any] = load_named(what, name, kinds=(FunctionType,))
    return function


@cache
def ends_of(model: str, tokenizer: Any) -> list[int]:
    """Return the ids that end an answer, as in the local loop."""
    try:
        config = GenerationConfig.from_pretrained(model)
    except OSError:  # it has none
        config = None
    return stop_ids(tokenizer, SimpleNamespace(generation_config=config))


class CriticLoop(AgentLoopBase):  # type: ignore[misc]
    """One answer to a prompt, or one episode, sampled by verl's servers and judged by our
    critic."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        ours = self.config[NAME]
        self.folder = folder_of(self.config)
        self.parts = parts_of(self.folder, ours.critic, ours.environment, ours.working_folder)
        self.table: TokenTable = get_table(self.tokenizer)
        self.ends = ends_of(self.config.actor_rollout_ref.model.path, self.tokenizer)
        self.settings = GenerationSettings.model_validate(plain(ours.generation))
        self.room = self.rollout_config.prompt_length + self.rollout_config.response_length
        self.logps: list[float] | None = []
        self.extra_fields: dict[str, Any] = {}

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
        """Sample and judge; a critique that fails is data, a mistake in the set-up ends the run."""
        row = kwargs["extra_info"]
        example = Example.model_validate_json(row["example"])
        with reporting(self.folder, UserError):  # any other error loses this trajectory alone
            prompt, sample = await self._sampled(sampling_params, example)
            words, _ = decode_sample(self.table, example, sample)
            (judgement,) = await asyncio.wrap_future(self.parts.queue.submit([(example, words)]))
        judged = Judged(
            number=int(row["index"]),
            example=example,
            judgement=judgement,
            truncated=sample.truncated,
            between=sample.between,
            tokens=self.parts.new_tokens(),
        )
        return AgentLoopOutput(
            prompt_ids=list(sample.prompt or prompt),
            response_ids=list(sample.ids),
            response_mask=[int(flag) for flag in sample.mask or [True] * len(sample.ids)],
            response_logprobs=self.logps,
            reward_score=getattr(judgement, "score", None) or 0.0,
            num_turns=2 if sample.between is None else 2 * len(sample.between),
            metrics={},
            extra_fields={**self.extra_fields, NAME: judged.model_dump_json(), "reward_extra_info": {}},
        )

    async def _sampled(self, params: dict[str, Any], example: Example) -> tuple[list[int], Sample]:
        make = self.parts.make
        if make is None:
            prompt = encode_prompt(self.tokenizer, example.prompt)
            return prompt, await self._turn(params, prompt)
        episode = await asyncio.to_thread(Episode.start, self.tokenizer, example, make)
        for turn in range(self.settings.max_turns):
            has_room = self._no_room if turn + 1 == self.settings.max_turns else self._has_room
            sample = await self._turn(params, episode.dialogue.all_ids)
            await asyncio.to_thread(episode.advance, sample, self.table.align(sample.ids).text, has_room)
            if episode.over:
                break
        self.logps = None  # others' ids have none
        return episode.dialogue.prompt, episode.sample()

    async def _turn(self, params: dict[str, Any], ids: Sequence[int]) -> Sample:
        limits = {"max_tokens": self.settings.max_new_tokens, "stop_token_ids": self.ends}
        answer = await self.server_manager.generate(
            request_id=uuid4().hex, prompt_ids=list(ids), sampling_params={**params, **limits}
        )
        self.logps, self.extra_fields = answer.log_probs, answer.extra_fields
        return Sample(list(answer.token_ids), answer.token_ids[-1] not in self.ends)

    def _has_room(self, thread: Dialogue) -> bool:
        return len(thread.all_ids) + self.settings.max_new_tokens <= int(self.room)

    def _no_room(self, thread: Dialogue) -> bool:
        return False


# The trainer: in verl's task runner ---------------------------------------------------------------


@register_adv_est(NAME)  # type: ignore[untyped-decorator]
def refuse_other_trainers(**_: Any) -> Any:
    """verl gives an estimator the sum of rewards and KL; ours needs verdict, words and KL apart,
    from our trainer.

    Raises:
        UserError: verl's own trainer calls it.
    """
    raise UserError(f"{NAME}'s advantages are computed in its own trainer", f"trainer.v1.trainer_mode={NAME}")


@register_trainer(NAME)
class Trainer(PPOTrainerSync):  # type: ignore[misc]
    """verl's synchronous trainer, whose advantages are those of the local loop
    (`experience.scored`)."""

    trainer_mode = property(lambda self: "sync", lambda self, name: None)

    def init(self) -> None:
        """Initialise verl's trainer, and cut off metrics and samples of steps after its
        checkpoint."""
        super().init()
        ours = self.config[NAME]
        self.folder = Path(ours.folder)
        self.ppo = PPOSettings.model_validate(plain(ours.ppo))
        self.credit = CreditSettings.model_validate(plain(ours.credit))
        self.table = get_table(self.tokenizer)
        self.described: dict[str, float] = {}
        for name in LOGS:
            truncate_log(self.folder / name, self.global_steps)

    def _compute_values(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Compute values, and the value after the last token, which verl drops: it bootstraps a cut
        answer."""
        temperature = self.config.actor_rollout_ref.rollout.temperature
        batch.extra_info.update({"compute_loss": False, "temperature": temperature})
        ray.get(self.critic_wg.infer_batch(batch).futures)
        where = {"keys": batch.keys, "partition_id": batch.partition_id}
        data = transfer_queue.kv_batch_get(**where, select_fields=["values", "response_mask"])
        last = nested([row[-1:].float() for row in data["values"].unbind()])
        fields = {"values": response_from_nested(data["values"], data["response_mask"]), "last_value": last}
        transfer_queue.kv_batch_put(**where, fields=TensorDict(fields, batch_size=len(batch.keys)))
        return batch

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Compute our advantages of all rows but those that verl added to fill its last
        mini-batch."""
        folder = folder_of(self.config)
        if (folder / PROBLEM).is_file():
            raise UserError("a worker failed", f"see {folder / PROBLEM}")
        with reporting(folder, UserError, FloatingPointError):
            return self._advantages(batch, metrics)

    def _advantages(self, batch: Any, metrics: dict[str, Any]) -> Any:
        names = ["prompts", "responses", "response_mask", "old_log_probs", "entropy", "extra_fields"]
        names += ["ref_log_prob"] * self.use_reference_policy + ["values", "last_value"] * self.use_critic
        where = {"keys": batch.keys, "partition_id": batch.partition_id}
        data = transfer_queue.kv_batch_get(**where, select_fields=names)
        real = [row for row, tag in enumerate(batch.tags) if not tag.get("is_padding", False)]
        trajectories = {batch.keys[row]: trajectory_of(data, row) for row in real}
        ordered = full_groups(trajectories, self.ppo.samples_per_prompt, self.tokenizer.eos_token_id)
        coefficient = self.ppo.kl_coefficient if self.use_reference_policy else 0.0
        answers = [trajectory for _, trajectory in ordered]
        responses, rollout = scored(answers, self.table, self.ppo, self.credit, coefficient)
        self.described = compute_metrics(responses, rollout, coefficient)
        step = self.global_steps - 1
        if is_due(step, self.ppo.steps, SAMPLES_EVERY):
            for strip in token_strips(step, responses, rollout, STRIPS, self.ppo.valued):
                append_line(self.folder / LOGS[1], strip)
        rows = {key: row for row, (key, _) in enumerate(ordered)}
        learned = rollout.loss_mask.long()
        columns = {
            "advantages": rollout.advantages,
            "returns": rollout.returns,
            "token_level_rewards": rollout.rewards,
            "rm_scores": rollout.delta,
            "response_mask": learned,  # what the loss is taken over, and
            "loss_mask": learned,  # what its mean divides by
        }
        lengths = data["response_mask"].offsets().diff().tolist()

        def put_back(column: Any) -> Any:
            parts = zip(batch.keys, lengths, strict=True)
            return nested([column[rows[k], :n] if k in rows else column.new_zeros(n) for k, n in parts])

        fields = {name: put_back(column) for name, column in columns.items()}
        return transfer_queue.kv_batch_put(**where, fields=TensorDict(fields, batch_size=len(batch.keys)))

    def _compute_metrics(self, batch: Any, metrics: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        """Compute verl's metrics, and write those with a name in the local loop to
        `metrics.jsonl`."""
        super()._compute_metrics(batch, metrics, *args, **kwargs)
        updated = {ours: metrics[theirs] for theirs, ours in UPDATED.items() if theirs in metrics}
        line = {**self.described, **updated, "seconds_score": sum(metrics.get(name, 0.0) for name in SCORED)}
        metrics |= {f"{NAME}/{name}": value for name, value in self.described.items()}
        finite = {name: float(value) for name, value in line.items() if math.isfinite(value)}
        append_line(self.folder / LOGS[0], {"step": self.global_steps - 1, **finite})


def trajectory_of(data: Any, row: int) -> Trajectory:
    """Return a row of verl's batch as a trajectory."""

    def numbers(name: str) -> Any:
        return data[name][row].float() if name in data else None

    extra = data["extra_fields"][row]
    judged = Judged.model_validate_json(getattr(extra, "data", extra)[NAME])
    last = numbers("last_value")
    return Trajectory(
        judged=judged,
        prompt=data["prompts"][row].tolist(),
        ids=data["responses"][row].tolist(),
        mask=data["response_mask"][row].tolist(),
        logp=numbers("old_log_probs"),
        entropy=numbers("entropy"),
        ref_logp=numbers("ref_log_prob"),
        values=numbers("values"),
        last_value=0.0 if last is None else float(last[-1]),
    )


def full_groups(trajectories: dict[str, Trajectory], size: int, end: int) -> list[tuple[str, Trajectory]]:
    """Put the answers to one prompt together, prompts in the order of the data, and fill groups
    that lost some.

    A key is verl's, PROMPT_SESSION_OUTPUT.
    """
    ordered = sorted(trajectories.items(), key=lambda item: (item[1].judged.number, int(item[0].rsplit("_", 2)[1])))
    filled: list[tuple[str, Trajectory]] = []
    for number, group in itertools.groupby(ordered, key=lambda item: item[1].judged.number):
        members = list(group)
        example = members[0][1].judged.example
        filled += [*members, *[("", lost(number, example, end))] * (size - len(members))]
    return filled


def folder_of(config: Any) -> Path:
    """Return the folder of what `engines.verl` wrote."""
    return Path(config.actor_rollout_ref.rollout.agent.agent_loop_config_path).parent


def nested(rows: Sequence[Any]) -> Any:
    """Return rows of different lengths as verl holds them."""
    return torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)


def plain(section: Any) -> Any:
    """Return a section of verl's configuration as dictionaries and lists."""
    from omegaconf import OmegaConf

    return OmegaConf.to_container(section, resolve=True)
