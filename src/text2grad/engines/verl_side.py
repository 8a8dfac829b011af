"""Our part in verl's processes: an agent loop with our critic, a trainer with our advantages.

verl imports this module in each process (`VERL_USE_EXTERNAL_MODULES`). `engines.verl` writes the
section `text2grad` of its configuration.
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

from text2grad.align import CreditSettings, TokenTable, get_table
from text2grad.align.critic_queue import CriticQueue
from text2grad.durable.log import LOGS, append_line, truncate_log
from text2grad.engines.experience import JudgedAnswer, JudgedTrajectory, lost_trajectory, score_trajectories
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
METRIC_NAMES = {
    "actor/pg_loss": "policy_loss",
    "actor/pg_clipfrac": "clip_fraction",
    "actor/grad_norm": "grad_norm",
    "critic/vf_loss": "value_loss",
    "timing_s/gen": "seconds_generate",
    "timing_s/update_actor": "seconds_update",
    "timing_s/update_weights": "seconds_weights",
}
"""Our names of verl's metrics."""
SCORING_TIMES = ("timing_s/old_log_prob", "timing_s/ref", "timing_s/values", "timing_s/adv")


# The agent loop: in verl's rollout workers --------------------------------------------------------


@dataclass
class Parts:
    """The critic, its queue and the maker of environments, shared by a worker's trajectories."""

    critic: Critic
    queue: CriticQueue
    make: MakeEnvironment | None
    tokens: float = 0.0

    def new_tokens(self) -> float:
        """Return the number of tokens that the critic used since the last call."""
        before, self.tokens = self.tokens, count_critic_tokens(self.critic)
        return self.tokens - before


@contextmanager
def report_errors(folder: Path, *kinds: type[Exception]) -> Iterator[None]:
    """Write an error to the run's folder, because verl loses the errors of its workers."""
    try:
        yield
    except kinds as error:
        line = {"problem": getattr(error, "problem", str(error)), "cure": getattr(error, "cure", "")}
        (folder / PROBLEM).write_text(json.dumps(line), encoding="utf-8")
        raise


@cache
def get_parts(folder: Path, critic: str, environment: str, working_folder: str) -> Parts:
    """Make the critic and environments of the settings in a folder, once for each worker."""
    os.chdir(working_folder)  # for relative paths and the user's modules
    settings = folder / "settings.yaml"
    with report_errors(folder, Exception):
        worker_critic: Critic = load_function("critic", critic)(settings, folder)
        make = load_function("environment", environment)(settings) if environment else None
    return Parts(worker_critic, CriticQueue(worker_critic, CRITIC_SECONDS, CRITIC_RETRIES, IN_FLIGHT), make)


def load_function(label: str, name: str) -> Callable[..., Any]:
    """Return the function of a name `module:function`."""
    function: Callable[..., Any] = load_named(label, name, kinds=(FunctionType,))
    return function


@cache
def get_stop_ids(model: str, tokenizer: Any) -> list[int]:
    """Return the ids that end an answer, as in the local loop."""
    try:
        config = GenerationConfig.from_pretrained(model)
    except OSError:  # the model has none
        config = None
    return stop_ids(tokenizer, SimpleNamespace(generation_config=config))


class CriticLoop(AgentLoopBase):  # type: ignore[misc]
    """Samples an answer or an episode with verl's servers, and judges it with our critic."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        ours = self.config[NAME]
        self.folder = get_folder(self.config)
        self.parts = get_parts(self.folder, ours.critic, ours.environment, ours.working_folder)
        self.table: TokenTable = get_table(self.tokenizer)
        self.ends = get_stop_ids(self.config.actor_rollout_ref.model.path, self.tokenizer)
        self.settings = GenerationSettings.model_validate(to_plain(ours.generation))
        self.room = self.rollout_config.prompt_length + self.rollout_config.response_length
        self.logps: list[float] | None = []
        self.extra_fields: dict[str, Any] = {}

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
        """Sample and judge; a failed critique is recorded, but a `UserError` ends the run."""
        row = kwargs["extra_info"]
        example = Example.model_validate_json(row["example"])
        with report_errors(self.folder, UserError):  # other errors lose only this trajectory
            prompt, sample = await self._sample(sampling_params, example)
            words, _ = decode_sample(self.table, example, sample)
            (judgement,) = await asyncio.wrap_future(self.parts.queue.submit([(example, words)]))
        answer = JudgedAnswer(
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
            extra_fields={**self.extra_fields, NAME: answer.model_dump_json(), "reward_extra_info": {}},
        )

    async def _sample(self, params: dict[str, Any], example: Example) -> tuple[list[int], Sample]:
        make = self.parts.make
        if make is None:
            prompt = encode_prompt(self.tokenizer, example.prompt)
            return prompt, await self._turn(params, prompt)
        episode = await asyncio.to_thread(Episode.start, self.tokenizer, example, make)
        for turn in range(self.settings.max_turns):
            last = turn + 1 == self.settings.max_turns
            sample = await self._turn(params, episode.dialogue.all_ids)
            words, has_room = self.table.align(sample.ids).text, (lambda _: False) if last else self._has_room
            await asyncio.to_thread(episode.advance, sample, words, has_room)
            if episode.over:
                break
        self.logps = None  # ids of others have none
        return episode.dialogue.prompt, episode.sample()

    async def _turn(self, params: dict[str, Any], ids: Sequence[int]) -> Sample:
        limits = {"max_tokens": self.settings.max_new_tokens, "stop_token_ids": self.ends}
        answer = await self.server_manager.generate(
            request_id=uuid4().hex, prompt_ids=list(ids), sampling_params={**params, **limits}
        )
        self.logps, self.extra_fields = answer.log_probs, answer.extra_fields
        return Sample(list(answer.token_ids), answer.token_ids[-1] not in self.ends)

    def _has_room(self, dialogue: Dialogue) -> bool:
        return len(dialogue.all_ids) + self.settings.max_new_tokens <= int(self.room)


# The trainer: in verl's task runner ---------------------------------------------------------------


@register_adv_est(NAME)  # type: ignore[untyped-decorator]
def refuse_other_trainers(**_: Any) -> Any:
    """Raise a `UserError`: verl's own trainer passes estimators only the sum of rewards and KL."""
    problem = f"the advantages of {NAME} are computed in its own trainer"
    raise UserError(problem, f"set trainer.v1.trainer_mode={NAME}")


@register_trainer(NAME)
class Trainer(PPOTrainerSync):  # type: ignore[misc]
    """verl's synchronous trainer with the advantages of the local loop."""

    trainer_mode = property(lambda self: "sync", lambda self, name: None)

    def init(self) -> None:
        """Initialise verl's trainer, and remove metrics and samples after its checkpoint."""
        super().init()
        ours = self.config[NAME]
        self.folder = Path(ours.folder)
        self.ppo = PPOSettings.model_validate(to_plain(ours.ppo))
        self.credit = CreditSettings.model_validate(to_plain(ours.credit))
        self.table = get_table(self.tokenizer)
        self.step_metrics: dict[str, float] = {}
        for name in LOGS:
            truncate_log(self.folder / name, self.global_steps)

    def _compute_values(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Compute values, including the one after the last token, which bootstraps cut answers."""
        temperature = self.config.actor_rollout_ref.rollout.temperature
        batch.extra_info.update({"compute_loss": False, "temperature": temperature})
        ray.get(self.critic_wg.infer_batch(batch).futures)
        rows = {"keys": batch.keys, "partition_id": batch.partition_id}
        data = transfer_queue.kv_batch_get(**rows, select_fields=["values", "response_mask"])
        last = to_nested([row[-1:].float() for row in data["values"].unbind()])
        fields = {"values": response_from_nested(data["values"], data["response_mask"]), "last_value": last}
        transfer_queue.kv_batch_put(**rows, fields=TensorDict(fields, batch_size=len(batch.keys)))
        return batch

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Compute our advantages for all rows except verl's padding."""
        folder = get_folder(self.config)
        if (folder / PROBLEM).is_file():
            raise UserError("a worker failed", f"see {folder / PROBLEM}")
        with report_errors(folder, UserError, FloatingPointError):
            return self._advantages(batch, metrics)

    def _advantages(self, batch: Any, metrics: dict[str, Any]) -> Any:
        names = ["prompts", "responses", "response_mask", "old_log_probs", "entropy", "extra_fields"]
        names += ["ref_log_prob", *["values", "last_value"] * self.use_critic]
        address = {"keys": batch.keys, "partition_id": batch.partition_id}
        data = transfer_queue.kv_batch_get(**address, select_fields=names)
        real = [row for row, tag in enumerate(batch.tags) if not tag.get("is_padding", False)]
        trajectories = {batch.keys[row]: read_trajectory(data, row) for row in real}
        ordered = fill_groups(trajectories, self.ppo.samples_per_prompt, self.tokenizer.eos_token_id)
        coefficient = self.ppo.kl_coefficient
        responses, rollout = score_trajectories(
            [trajectory for _, trajectory in ordered], self.table, self.ppo, self.credit, coefficient
        )
        self.step_metrics = compute_metrics(responses, rollout, coefficient)
        step = self.global_steps - 1
        if is_due(step, self.ppo.steps, SAMPLES_EVERY):
            for strip in token_strips(step, responses, rollout, STRIPS, self.ppo.valued):
                append_line(self.folder / LOGS[1], strip)
        rows = {key: row for row, (key, _) in enumerate(ordered)}
        loss_mask = rollout.loss_mask.long()
        columns = {
            "advantages": rollout.advantages,
            "returns": rollout.returns,
            "token_level_rewards": rollout.rewards,
            "rm_scores": rollout.delta,
            "response_mask": loss_mask,  # the tokens of the loss
            "loss_mask": loss_mask,  # the denominator of its mean
        }
        lengths = data["response_mask"].offsets().diff().tolist()

        def to_jagged(column: Any) -> Any:
            parts = zip(batch.keys, lengths, strict=True)
            return to_nested([column[rows[k], :n] if k in rows else column.new_zeros(n) for k, n in parts])

        fields = {name: to_jagged(column) for name, column in columns.items()}
        return transfer_queue.kv_batch_put(**address, fields=TensorDict(fields, batch_size=len(batch.keys)))

    def _compute_metrics(self, batch: Any, metrics: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        """Compute verl's metrics, and write our metrics of the step to `metrics.jsonl`."""
        super()._compute_metrics(batch, metrics, *args, **kwargs)
        updated = {ours: metrics[theirs] for theirs, ours in METRIC_NAMES.items() if theirs in metrics}
        line = {
            **self.step_metrics,
            **updated,
            "seconds_score": sum(metrics.get(name, 0.0) for name in SCORING_TIMES),
        }
        metrics |= {f"{NAME}/{name}": value for name, value in self.step_metrics.items()}
        finite = {name: float(value) for name, value in line.items() if math.isfinite(value)}
        append_line(self.folder / LOGS[0], {"step": self.global_steps - 1, **finite})


def read_trajectory(data: Any, row: int) -> JudgedTrajectory:
    """Read a trajectory from a row of verl's batch."""

    def numbers(name: str) -> Any:
        return data[name][row].float() if name in data else None

    extra = data["extra_fields"][row]
    answer = JudgedAnswer.model_validate_json(getattr(extra, "data", extra)[NAME])
    last = numbers("last_value")
    return JudgedTrajectory(
        answer=answer,
        prompt=data["prompts"][row].tolist(),
        ids=data["responses"][row].tolist(),
        mask=data["response_mask"][row].tolist(),
        logp=numbers("old_log_probs"),
        entropy=numbers("entropy"),
        ref_logp=numbers("ref_log_prob"),
        values=numbers("values"),
        last_value=0.0 if last is None else float(last[-1]),
    )


def fill_groups(
    trajectories: dict[str, JudgedTrajectory], size: int, end: int
) -> list[tuple[str, JudgedTrajectory]]:
    """Group the answers by prompt in the order of the data, and fill incomplete groups.

    The keys are verl's, PROMPT_SESSION_OUTPUT.
    """
    ordered = sorted(trajectories.items(), key=lambda item: (item[1].answer.number, int(item[0].rsplit("_", 2)[1])))
    filled: list[tuple[str, JudgedTrajectory]] = []
    for number, group in itertools.groupby(ordered, key=lambda item: item[1].answer.number):
        members = list(group)
        example = members[0][1].answer.example
        filled += [*members, *[("", lost_trajectory(number, example, end))] * (size - len(members))]
    return filled


def get_folder(config: Any) -> Path:
    """Return the folder of verl's inputs."""
    return Path(config.actor_rollout_ref.rollout.agent.agent_loop_config_path).parent


def to_nested(rows: Sequence[Any]) -> Any:
    """Return rows of different lengths as a jagged tensor."""
    return torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)


def to_plain(section: Any) -> Any:
    """Convert a section of verl's configuration to dictionaries and lists."""
    from omegaconf import OmegaConf

    return OmegaConf.to_container(section, resolve=True)
