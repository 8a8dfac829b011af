"""Configure and run verl, and collect its policy. This module does not import verl.

verl pins an older transformers, so it has a separate environment. Its `main_ppo` runs there with
our agent loop, which asks our critic, and our trainer, whose advantages are those of
`train.rollout.build_rollout` (`engines.verl_side`). All inputs are written to `ppo/<name>/verl`.
"""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import yaml
from transformers import AutoModelForCausalLM

from text2grad.align import CreditSettings
from text2grad.durable.guard import lock_folder, report_disk_errors
from text2grad.durable.identity import hash_texts, refuse_changed
from text2grad.durable.log import LOGS
from text2grad.durable.progress import ProgressLine
from text2grad.durable.run import ResumeMode, replace_folder
from text2grad.engines.settings import VerlSettings
from text2grad.errors import UsageError, UserError
from text2grad.feedback import Example
from text2grad.json_text import split_lines
from text2grad.policy.files.gguf import local_model
from text2grad.policy.files.manifest import sha256
from text2grad.policy.files.save import make_readable
from text2grad.policy.files.tokenizer import load_tokenizer
from text2grad.policy.files.weights import read_config
from text2grad.policy.load import ADAPTER_CONFIG, ADAPTER_FILE, add_lora, base_model_name, is_adapter, load_policy
from text2grad.policy.settings import GenerationSettings, PolicySettings
from text2grad.signals import POLL_SECONDS, StopRequest, stop_here
from text2grad.train.optimizers import MAX_GRAD_NORM
from text2grad.train.passes import largest_divisor
from text2grad.train.ppo import CHECKPOINT_EVERY, prompt_order
from text2grad.train.ppo_settings import PPOSettings, refuse_greedy
from text2grad.train.update import CLIP, VALUE_CLIP

VERSION = "0.9.1"
SIDE = "text2grad.engines.verl_side"
NAME = "text2grad"
"""The name of our trainer, estimator, agent loop and section in verl's configuration."""
ACTOR, ROLLOUT, MODEL = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "model"))
NEVER_CLIPPED = 1e30
"""The ratio at which verl clips negative advantages a second time."""
OTHERS_SHARE = 2
"""The largest length of an episode, relative to the policy's turns in it."""
START = "start-"
"""The prefix of a folder with an adapter merged into its base; the adapter's digest follows."""
INSTALL = f"pip install 'verl[verl-core]=={VERSION}' vllm text2grad=={version('text2grad')}"


@dataclass(frozen=True, kw_only=True)
class Job:
    """A training run with verl: its folder and its settings.

    Attributes:
        place: the folder `ppo/<name>`.
        settings: the complete configuration as YAML, for the workers.
        critic: the function (`module:function`) that makes the critic from that file.
        environment: the function that makes the environment, or an empty string.
    """

    place: Path
    policy: PolicySettings
    ppo: PPOSettings
    credit: CreditSettings
    generation: GenerationSettings
    verl: VerlSettings
    seed: int
    settings: str
    critic: str
    environment: str
    prompt_tokens: int
    loggers: Sequence[str] = ()

    @property
    def folder(self) -> Path:
        """The folder of verl's inputs and outputs."""
        return self.place / "verl"

    @property
    def checkpoints(self) -> Path:
        """The folder of verl's checkpoints."""
        return self.folder / "checkpoints"

    @property
    def log(self) -> Path:
        """The folder of metrics and samples until the run is complete."""
        return self.folder if (self.place / "policy").is_dir() else self.place

    @property
    def prompts(self) -> int:
        """The number of prompts in a step."""
        return self.ppo.rollouts // self.ppo.samples_per_prompt

    @property
    def mini_batch(self) -> int:
        """The number of answers in a mini-batch."""
        return self.ppo.rollouts // self.ppo.mini_batches

    @property
    def start(self) -> str:
        """The model that verl loads: a hub name, or a folder with complete weights."""
        if is_adapter(self.policy.model):
            files = [Path(self.policy.model) / name for name in (ADAPTER_CONFIG, ADAPTER_FILE)]
            digest = hash_texts(sha256(file) for file in files if file.is_file())
            return str((self.place / f"{START}{digest[:12]}").absolute())
        model = local_model(self.policy.model)
        return str(Path(model).absolute()) if Path(model).is_dir() else model


# Refused settings ---------------------------------------------------------------------------------


def refuse_unfit(job: Job) -> None:
    """Raise a `UserError` with an alternative for settings that verl does not support."""
    ppo, gpus = job.ppo, count_gpus(job.verl.options)
    unfit = {
        "ppo.kl full: verl keeps log-probabilities of sampled tokens only": (ppo.kl == "full", "--ppo.kl k1"),
        "ppo.kl_target: verl's checkpoints do not contain our coefficient": (
            ppo.kl_target is not None,
            "--ppo.kl_target null",
        ),
        "ppo.schedule linear: verl has constant and cosine": (ppo.schedule == "linear", "--ppo.schedule cosine"),
        f"policy.value_head {job.policy.value_head}: verl's value function has a separate trunk": (
            ppo.valued and job.policy.value_head != "separate",
            "--policy.value_head separate",
        ),
        "ppo.heldout_every: verl cannot run our evaluation": (
            ppo.heldout_every is not None,
            "--ppo.heldout_every null, then text2grad evaluate",
        ),
        "ppo.keep_every: verl keeps only the last policy": (ppo.keep_every is not None, "--ppo.keep_every null"),
        f"ppo.mini_batches {ppo.mini_batches} does not divide the {job.prompts} prompts of a step": (
            job.prompts % ppo.mini_batches > 0,
            "ppo.rollouts / ppo.samples_per_prompt / ppo.mini_batches must be an integer",
        ),
        f"{gpus} GPUs cannot share mini-batches of {job.mini_batch} answers evenly": (
            job.mini_batch % gpus > 0,
            "raise ppo.rollouts to a multiple, or lower ppo.mini_batches",
        ),
        "policy.dtype float16 cannot be trained": (job.policy.dtype == "float16", "--policy.dtype bfloat16"),
    }
    for problem, (is_unfit, cure) in unfit.items():
        if is_unfit:
            raise UserError(f"engine verl: {problem}", cure)
    refuse_greedy(job.generation)


OUR_SETTINGS = {
    "algorithm": "ppo.advantage, ppo.gamma, ppo.lam, ppo.kl and ppo.kl_coefficient",
    "reward": "critic.kind",
    NAME: "ppo, credit and generation",
    "custom_reward_function": "critic.kind",
    "trainer.use_v1": "ppo.advantage",
    "trainer.v1": "ppo.advantage",
    "trainer.total_training_steps": "ppo.steps",
    "trainer.total_epochs": "ppo.steps",
    "trainer.critic_warmup": "ppo.value_warmup",
    "trainer.default_local_dir": "run.folder",
    "trainer.resume_mode": "--restart",
    "trainer.resume_from_path": "--restart",
    "data.train_files": "task.data",
    "data.train_batch_size": "ppo.rollouts",
    "data.gen_batch_size": "ppo.rollouts",
    "data.shuffle": "run.seed",
    "data.max_prompt_length": "task.context_characters",
    "data.max_response_length": "generation.max_new_tokens",
    "data.train_max_samples": "task.limit",
    "data.custom_cls": "task.name",
    f"{MODEL}.path": "policy.model",
    f"{MODEL}.lora_rank": "policy.lora",
    f"{MODEL}.lora_alpha": "policy.lora",
    f"{MODEL}.lora_adapter_path": "policy.lora",
    f"{MODEL}.target_modules": "policy.lora",
    f"{MODEL}.custom_chat_template": "policy.chat_template",
    f"{ROLLOUT}.n": "ppo.samples_per_prompt",
    f"{ROLLOUT}.temperature": "generation.temperature",
    f"{ROLLOUT}.top_p": "generation.temperature",
    f"{ROLLOUT}.top_k": "generation.temperature",
    f"{ROLLOUT}.do_sample": "generation.temperature",
    f"{ROLLOUT}.agent.agent_loop_config_path": "critic.kind",
    f"{ROLLOUT}.agent.default_agent_loop": "critic.kind",
    **{
        f"{part}.{key}": setting
        for part in (ACTOR, "critic")
        for key, setting in {
            "ppo_mini_batch_size": "ppo.mini_batches",
            "ppo_epochs": "ppo.epochs",
            "shuffle": "ppo.mini_batches",
            "loss_agg_mode": "",
            "loss_scale_factor": "",
            "grad_clip": "",
            "optim.lr": "ppo.lr" if part == ACTOR else "ppo.value_lr",
            "optim.lr_scheduler_type": "ppo.schedule",
            "optim.weight_decay": "",
            "optim.clip_grad": "",
        }.items()
    },
    f"{ACTOR}.clip_ratio": "",
    f"{ACTOR}.clip_ratio_low": "",
    f"{ACTOR}.clip_ratio_high": "ppo.clip_high",
    f"{ACTOR}.clip_ratio_c": "",
    f"{ACTOR}.policy_loss": "",
    f"{ACTOR}.entropy_coeff": "",
    f"{ACTOR}.use_kl_loss": "ppo.kl_coefficient",
    f"{ACTOR}.kl_loss_coef": "ppo.kl_coefficient",
    "critic.enable": "ppo.advantage",
    "critic.model.path": "policy.model",
    "critic.cliprange_value": "",
}
"""Our settings by the verl keys that they determine; an empty string for fixed keys."""


def user_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the user's options for verl by dotted keys.

    Raises:
        UsageError: an option would change what is learned.
    """
    dotted = dict(_dotted("", options))
    for option in dotted:
        name = option.lstrip("+~")
        ours = next(
            (key for key in OUR_SETTINGS if f"{name}.".startswith(f"{key}.") or key.startswith(f"{name}.")), None
        )
        if ours is not None:
            cure = "leave it out: it is the same in every engine"
            if OUR_SETTINGS[ours]:
                cure = f"set {OUR_SETTINGS[ours]}"
            raise UsageError(f"engine.verl.options.{option} would change what is learned", cure)
    return dotted


def _dotted(prefix: str, options: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in options.items():
        if isinstance(value, Mapping) and value:
            yield from _dotted(f"{prefix}{key}.", value)
        else:
            yield f"{prefix}{key}", value


def count_gpus(options: Mapping[str, Any]) -> int:
    """Return the number of GPUs; raise a `UsageError` if it is not a positive integer."""
    dotted = user_options(options)
    counts = [dotted.get(f"trainer.{key}", 1) for key in ("nnodes", "n_gpus_per_node")]
    if not all(isinstance(count, int) and count > 0 for count in counts):
        raise UsageError(f"engine.verl.options.trainer: {counts[0]} nodes of {counts[1]} GPUs", "give two integers")
    return int(counts[0] * counts[1])


def check_python(python: str) -> None:
    """Raise a `UserError` unless this Python has our versions of verl and of this package."""
    code = (
        "import json\nfrom importlib.metadata import PackageNotFoundError, version\ndef find(name):\n"
        "    try: return version(name)\n    except PackageNotFoundError: return None\n"
        "print(json.dumps([find('verl'), find('text2grad')]))"
    )
    try:
        process = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=120, check=True)
        verl, ours = json.loads(process.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        problem = f"engine.verl.python {python} is not a working Python"
        raise UserError(problem, "give the python of verl's environment") from error
    if verl != VERSION:
        problem = f"{python} has {f'verl {verl}' if verl else 'no verl'}, but verl {VERSION} is needed"
        raise UserError(problem, f"in a separate environment: {INSTALL}; then --engine.verl.python PATH")
    if ours != version("text2grad"):
        problem = f"{python} has {f'text2grad {ours}' if ours else 'no text2grad'}, not {version('text2grad')}"
        raise UserError(problem, f"{python} -m pip install text2grad=={version('text2grad')}")


# Inputs of verl -----------------------------------------------------------------------------------


def configuration(job: Job) -> dict[str, Any]:
    """Return verl's configuration by dotted keys, without the user's options."""
    ppo = job.ppo
    rows = largest_divisor(job.mini_batch // count_gpus(job.verl.options), ppo.micro_batch_size)
    keys = {
        "algorithm.adv_estimator": NAME,
        "algorithm.use_kl_in_reward": True,  # makes verl load the reference, also to report the KL
        **_data(job),
        **_model(job),
        **_sampling(job, rows),
        f"{ACTOR}.clip_ratio": CLIP,
        f"{ACTOR}.clip_ratio_low": CLIP,
        f"{ACTOR}.clip_ratio_high": ppo.clip_high or CLIP,
        f"{ACTOR}.clip_ratio_c": NEVER_CLIPPED,
        **_optimisation(job, ACTOR, "fsdp_config", rows, ppo.lr),
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": rows,
        **_precision(job, "actor_rollout_ref.ref.fsdp_config"),
        "critic.enable": ppo.valued,
        "reward.num_workers": 1,
        "ray_kwargs.ray_init.runtime_env.env_vars": environment_variables(),
        **_trainer(job),
    }
    if ppo.valued:
        keys |= _optimisation(job, "critic", "fsdp", rows, ppo.value_lr or ppo.lr)
        keys |= {"critic.model.path": job.start, "critic.cliprange_value": VALUE_CLIP}
    return keys


def _data(job: Job) -> dict[str, Any]:
    prompts = str((job.folder / "prompts.parquet").absolute())
    tokens = job.generation.max_new_tokens
    if job.environment:
        tokens *= job.generation.max_turns * OTHERS_SHARE
    return {
        "data.train_files": prompts,
        "data.val_files": prompts,
        "data.val_max_samples": 1,
        "data.shuffle": False,
        "data.train_batch_size": job.prompts,
        "data.max_prompt_length": job.prompt_tokens,
        "data.max_response_length": tokens,
        "data.dataloader_num_workers": 0,
        "data.seed": job.seed,
    }


def _model(job: Job) -> dict[str, Any]:
    """Return the settings of the policy's model, and of its checkpoints."""
    keys: dict[str, Any] = {f"{MODEL}.path": job.start}
    checkpoint = ["model", "optimizer", "extra"]
    if job.policy.chat_template:
        keys[f"{MODEL}.custom_chat_template"] = Path(job.policy.chat_template).read_text(encoding="utf-8")
    if (lora := job.policy.lora) is None:
        checkpoint.append("hf_model")
    else:
        keys |= {
            f"{MODEL}.lora_rank": lora.r,
            f"{MODEL}.lora_alpha": 2 * lora.r,
            f"{MODEL}.target_modules": list(lora.targets) if lora.targets else "all-linear",
            f"{ROLLOUT}.load_format": "safetensors",
        }
    return {**keys, f"{ACTOR}.checkpoint.save_contents": checkpoint}


def _sampling(job: Job, rows: int) -> dict[str, Any]:
    return {
        f"{ROLLOUT}.name": "vllm",
        f"{ROLLOUT}.n": job.ppo.samples_per_prompt,
        f"{ROLLOUT}.temperature": job.generation.temperature,
        f"{ROLLOUT}.seed": job.seed,
        f"{ROLLOUT}.tensor_model_parallel_size": 1,
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": rows,
        f"{ROLLOUT}.calculate_log_probs": not job.environment,
        f"{ROLLOUT}.dtype": "float32" if job.policy.dtype == "float32" else "bfloat16",
        f"{ROLLOUT}.agent.num_workers": 1,  # each has its own critic
        f"{ROLLOUT}.agent.agent_loop_config_path": str((job.folder / "loop.yaml").absolute()),
        f"{ROLLOUT}.agent.default_agent_loop": NAME,
    }


def _trainer(job: Job) -> dict[str, Any]:
    return {
        "trainer.nnodes": 1,
        "trainer.n_gpus_per_node": 1,
        "trainer.logger": ["console", *job.loggers],
        "trainer.project_name": NAME,
        "trainer.experiment_name": job.place.name,
        "trainer.v1.trainer_mode": NAME,
        "trainer.total_epochs": 1,
        "trainer.total_training_steps": job.ppo.steps,
        "trainer.critic_warmup": job.ppo.warmup_steps + 1 if job.ppo.warmup_steps else 0,
        "trainer.val_before_train": False,
        "trainer.test_freq": -1,
        "trainer.save_freq": CHECKPOINT_EVERY,
        "trainer.max_actor_ckpt_to_keep": 1,
        "trainer.max_critic_ckpt_to_keep": 1,
        "trainer.default_local_dir": str(job.checkpoints.absolute()),
    }


def _optimisation(job: Job, part: str, fsdp: str, rows: int, lr: float) -> dict[str, Any]:
    """Return the settings that train the policy or the value function."""
    ppo = job.ppo
    return {
        f"{part}.strategy": "fsdp2",
        f"{part}.ppo_mini_batch_size": job.prompts // ppo.mini_batches,
        f"{part}.ppo_micro_batch_size_per_gpu": rows,
        f"{part}.ppo_epochs": ppo.epochs,
        f"{part}.shuffle": True,
        f"{part}.data_loader_seed": job.seed,
        f"{part}.loss_agg_mode": "token-mean",
        f"{part}.grad_clip": MAX_GRAD_NORM,
        f"{part}.optim.clip_grad": MAX_GRAD_NORM,
        f"{part}.optim.lr": lr,
        f"{part}.optim.lr_scheduler_type": ppo.schedule if part == ACTOR else "constant",
        f"{part}.optim.weight_decay": 0.0,
        f"{part}.{fsdp}.seed": job.seed,
        **_precision(job, f"{part}.{fsdp}"),
    }


def _precision(job: Job, part: str) -> dict[str, Any]:
    """Return the types for computing in float32; verl's default is bfloat16."""
    if job.policy.dtype != "float32":
        return {}
    return {f"{part}.mixed_precision": dict.fromkeys(("param_dtype", "reduce_dtype", "buffer_dtype"), "fp32")}


def environment_variables() -> dict[str, str]:
    """Return the variable that makes verl import our side and the user's modules."""
    names = os.environ.get("VERL_USE_EXTERNAL_MODULES", "").split(",")
    modules = [name for name in names if name not in ("", SIDE)]
    return {"VERL_USE_EXTERNAL_MODULES": ",".join([*modules, SIDE])}


def write_inputs(job: Job, examples: Sequence[Example]) -> None:
    """Write verl's inputs: `ppo.yaml`, `loop.yaml`, `settings.yaml` and `prompts.parquet`."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    job.folder.mkdir(parents=True, exist_ok=True)
    rows = [*prompt_rows(job, examples)]
    with report_disk_errors(job.folder):
        parquet.write_table(pa.Table.from_pylist(rows), job.folder / "prompts.parquet")
        (job.folder / "ppo.yaml").write_text(render_config(job), encoding="utf-8")
        loop = [{"name": NAME, "_target_": f"{SIDE}.CriticLoop"}]
        (job.folder / "loop.yaml").write_text(yaml.safe_dump(loop), encoding="utf-8")
        (job.folder / "settings.yaml").write_text(job.settings, encoding="utf-8")


def prompt_rows(job: Job, examples: Sequence[Example]) -> Iterator[dict[str, Any]]:
    """Yield the prompts of all steps as rows of verl's data set, in the order of the local loop."""
    order = prompt_order(len(examples), job.ppo, random.Random(job.seed))
    indices = (index for step in islice(order, job.ppo.steps) for index in step[:: job.ppo.samples_per_prompt])
    for number, index in enumerate(indices):
        example = examples[index]
        yield {
            "prompt": [message.model_dump() for message in example.prompt],
            "data_source": NAME,
            "reward_model": {"style": "rule", "ground_truth": example.reference},
            "extra_info": {"index": number, "example": example.model_dump_json()},
        }


def render_config(job: Job) -> str:
    """Return `ppo.yaml`, our configuration on top of verl's defaults."""
    tree: dict[str, Any] = {"defaults": ["ppo_trainer", "_self_"]}
    for key, value in configuration(job).items():
        *sections, last = key.split(".")
        inner = tree
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[last] = value
    tree[NAME] = {
        "folder": str(job.log.absolute()),
        "working_folder": str(Path.cwd()),
        "critic": job.critic,
        "environment": job.environment,
        "ppo": job.ppo.model_dump(mode="json"),
        "credit": job.credit.model_dump(mode="json"),
        "generation": job.generation.model_dump(mode="json"),
    }
    head = f"# {job.place.name}: written for verl {VERSION}; set other keys in engine.verl.options.\n"
    return head + yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)


def command(job: Job, python: str) -> list[str]:
    """Return the command that runs verl's trainer; the user's options come last."""
    folder = str(job.folder.absolute())
    trainer = [python, "-m", "verl.trainer.main_ppo", "--config-dir", folder, "--config-name", "ppo"]
    options = [f"{key}={_quote(value)}" for key, value in user_options(job.verl.options).items()]
    return [*trainer, f"hydra.run.dir={_quote(folder)}", "hydra.output_subdir=null", *options]


def _quote(value: Any) -> str:
    """Quote a value for verl's command line."""
    if isinstance(value, str):
        return value if re.fullmatch(r"[\w./:@-]+", value) else "'" + value.replace("'", r"\'") + "'"
    return json.dumps(value)


def plan(job: Job, python: str) -> str:
    """Return the configuration and the command as text."""
    variables = " ".join(f"{name}={value}" for name, value in environment_variables().items())
    return f"{render_config(job)}\n{variables} {shlex.join(command(job, python))}\n"


# The run ------------------------------------------------------------------------------------------


def train(job: Job, examples: Sequence[Example], python: str, resume: ResumeMode = "auto") -> None:
    """Train in the folder of the job, from the last checkpoint of an unfinished run if any.

    Raises:
        UserError: the settings of the unfinished run changed, or verl or our part of it failed.
    """
    with lock_folder(job.place):
        if resume == "restart":
            clear(job)
        elif resume == "auto":
            refuse_other_settings(job)
        write_start(job)
        write_inputs(job, examples)
        run(job, python)
        collect(job, python)


def refuse_other_settings(job: Job) -> None:
    """Raise a `UserError` if the configuration of a run to resume has changed."""
    file = job.folder / "ppo.yaml"
    if not (job.checkpoints / LATEST).is_file() or not file.is_file():
        return
    before, now = (
        {key: value for key, value in _dotted("", yaml.safe_load(text)) if not key.startswith(CHANGEABLE)}
        for text in (file.read_text("utf-8"), render_config(job))
    )
    refuse_changed(job.place, before, now)


CHANGEABLE = ("trainer.logger", "ray_kwargs.", *(f"{NAME}.{key}" for key in ("folder", "working_folder")))
CHANGEABLE += tuple(f"{NAME}.ppo.{key}" for key in ("max_failed", "max_unmatched", "max_kl"))
"""Keys of `ppo.yaml` that may change before a run is resumed."""
LATEST = "latest_checkpointed_iteration.txt"


@dataclass(frozen=True)
class Skeleton:
    """A policy without weights, which only verl loads: its shape and tokenizer."""

    model: Any
    tokenizer: Any
    device: torch.device

    @classmethod
    def load(cls, settings: PolicySettings) -> Skeleton:
        """Read the configuration and the tokenizer of a model.

        Raises:
            UserError: the model does not exist.
        """
        tokenizer = load_tokenizer(settings.model, settings.chat_template)
        base = base_model_name(local_model(settings.model))
        config = read_config(base)
        with torch.device("meta") as device:
            model: Any = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
            return cls(add_lora(model, settings.lora, base) if settings.lora else model, tokenizer, device)


def clear(job: Job) -> None:
    """Remove the files of an unfinished run."""
    shutil.rmtree(job.folder, ignore_errors=True)
    if job.log == job.place:
        for name in LOGS:
            (job.place / name).unlink(missing_ok=True)


def write_start(job: Job) -> None:
    """Write the starting model, merged in float32, if the policy is an adapter."""
    if is_adapter(job.policy.model) and not Path(job.start).is_dir():
        merged = job.policy.model_copy(update={"lora": None, "dtype": "float32", "device": "cpu"})
        policy = load_policy(merged)

        def write(folder: Path) -> None:
            policy.model.save_pretrained(folder, safe_serialization=True)
            policy.tokenizer.save_pretrained(folder)

        replace_folder(Path(job.start), write)


def run(job: Job, python: str) -> None:
    """Run verl to its end, with its output in `verl/log.txt`.

    Raises:
        UserError: verl failed; has our error if our part failed, else verl's last error.
    """
    output, problem = job.folder / "log.txt", job.folder / PROBLEM
    problem.unlink(missing_ok=True)
    variables = {**os.environ, **environment_variables()}
    line = ProgressLine(job.place.name, job.ppo.steps)
    with StopRequest(), output.open("a", encoding="utf-8") as log, line:
        process = subprocess.Popen(
            command(job, python), env=variables, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            reported = -1
            while process.poll() is None:
                reported = _report_step(job, line, reported)
                stop_here()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(POLL_SECONDS)
            _report_step(job, line, reported)
        finally:
            if process.poll() is None:  # stopped by a signal; verl resumes from its last checkpoint
                os.killpg(process.pid, signal.SIGTERM)
                process.wait()
    if problem.is_file():
        failure = json.loads(problem.read_text(encoding="utf-8"))
        raise UserError(failure["problem"], failure["cure"])
    if process.returncode:
        raise UserError(f"verl failed: {_last_error(output)}", f"its output is in {output}")


PROBLEM = "problem.json"


def _report_step(job: Job, line: ProgressLine, reported: int) -> int:
    """Report the last step in the metrics if it is later than `reported`, and return it."""
    file = job.log / LOGS[0]
    rows = split_lines(file.read_text(encoding="utf-8", errors="replace")) if file.is_file() else []
    row = json.loads(rows[-1]) if rows and rows[-1].endswith("}") else {"step": reported}
    if row["step"] > reported:
        figures = (f"{name} {row[name]:.3g}" for name in ("score", "kl") if name in row)
        line.finish_step(row["step"], " ".join(figures))
    return int(row["step"])


def _last_error(output: Path) -> str:
    lines = split_lines(output.read_text(encoding="utf-8", errors="replace"))
    errors = [line.strip() for line in lines if re.search(r"^\S*(Error|Exception)\b|\bError: ", line)]
    last = errors[-1] if errors else next((line for line in reversed(lines) if line.strip()), "no output")
    return last[:300]


def collect(job: Job, python: str) -> None:
    """Move verl's policy, metrics and samples to the run folder, as the local loop writes them.

    Raises:
        UserError: verl ended before its last step, or its merger failed.
    """
    latest = job.checkpoints / LATEST
    step = int(latest.read_text(encoding="utf-8")) if latest.is_file() else 0
    if step < job.ppo.steps:
        raise UserError(f"verl ended after {step} of {job.ppo.steps} steps", f"see {job.folder / 'log.txt'}")
    actor, log = job.checkpoints / f"global_step_{step}" / "actor", job.log
    with report_disk_errors(job.place / "policy"):
        replace_folder(job.place / "policy", partial(_write_policy, job, python, actor))
    for name in LOGS:
        if log != job.place and (log / name).is_file():
            os.replace(log / name, job.place / name)
    shutil.rmtree(job.checkpoints)
    for folder in job.place.glob(f"{START}*"):
        if job.policy.lora is None or folder.name != Path(job.start).name:  # an adapter needs its base
            shutil.rmtree(folder)


def _write_policy(job: Job, python: str, actor: Path, folder: Path) -> None:
    """Write the model or adapter of verl's checkpoint `actor` and the tokenizer."""
    if job.policy.lora is None:
        shutil.copytree(actor / "huggingface", folder)
    else:
        _merge_adapter(job, python, actor, folder)
    load_tokenizer(job.start, job.policy.chat_template).save_pretrained(folder)
    make_readable(folder)


def _merge_adapter(job: Job, python: str, actor: Path, out: Path) -> None:
    """Write the adapter of a sharded checkpoint with verl's merger."""
    merged = job.folder / "merged"
    merge = [python, "-m", "verl.model_merger", "merge", "--backend", "fsdp"]
    merge += ["--local_dir", str(actor), "--target_dir", str(merged)]
    process = subprocess.run(merge, capture_output=True, text=True, check=False)
    if process.returncode:
        reason = split_lines(process.stderr.strip() or "-")[-1][:300]
        raise UserError(f"verl's merger failed: {reason}", shlex.join(merge))
    shutil.move(merged / "lora_adapter", out)
    file = out / ADAPTER_CONFIG
    config = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**config, "base_model_name_or_path": job.start}, indent=1), encoding="utf-8")
    shutil.rmtree(merged)
