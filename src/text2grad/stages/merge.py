"""`merge`: export a trained policy or reward model for other programs, with a model card.

The result is a plain Hugging Face folder, optionally with a GGUF file, or a folder with the adapter
alone. An adapter is merged in float32, layer by layer, on the CPU. Rounding to a half-precision
type loses part of a small change, and the summary reports how much is kept.
"""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import GenerationConfig

from text2grad.config import TINY, Config, dump_config
from text2grad.errors import UserError, first_line, optional_packages, warn_once
from text2grad.json_text import to_json
from text2grad.page.render import render_text
from text2grad.policy.encode import stop_ids
from text2grad.policy.files.gguf import SMOLLM2, is_gguf
from text2grad.policy.files.gguf_writer import find_obstacle, write_gguf
from text2grad.policy.files.manifest import refuse_damaged
from text2grad.policy.files.save import head_files, make_readable
from text2grad.policy.files.smollm2 import GGUF, HUB_NAME
from text2grad.policy.files.tokenizer import load_tokenizer
from text2grad.policy.load import (
    ADAPTER_CONFIG,
    ADAPTER_FILE,
    BASE,
    base_model_name,
    cast_weights,
    is_adapter,
    load_model,
    merge_layers,
)
from text2grad.stages.run_folder import GATE_FILE, SFT, RunFolder, read_json
from text2grad.stages.training import MODEL_NOTE, prepare

REWARD_MODEL = "reward_model"
PACKAGES = ("text2grad", "torch", "transformers", "peft")
SETTINGS_FILE = "text2grad.yaml"
IN_HUB_CACHE = re.compile(r"/models--([^/]+?)--([^/]+)/snapshots/")
VLLM_RANK = 16
"""The largest rank of adapters that vLLM serves by default."""


DType = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True, kw_only=True)
class MergeForm:
    """The form of a merge: a merged model, or with `adapter` the adapter alone.

    Args:
        dtype: the type of the weights; None: float32 if an adapter is merged, else the saved type.
        gguf: also write a GGUF file of the merged model, in the same type.
        base: the name of the adapter's base model for other programs; empty: its name on the hub,
            else its folder.
    """

    dtype: DType | None = None
    gguf: bool = False
    adapter: bool = False
    base: str = ""


def run_merge(
    config: Config, target: str, out: Path, license_name: str, hub: str | None, form: MergeForm = MergeForm()
) -> dict[str, Any]:
    """Write the run's model `target` to `out` in the given form, and push it to `hub` if set.

    The folder is written under a temporary name, so that `out` is complete or empty.
    The verdict of `train-reward` (`gate.json`) is copied with a reward model.

    Returns:
        The folder of the model, its contents, the commands that serve it, and its name on the hub.
        `kept`, for an adapter merged into half-precision weights, is the cosine between the trained
        change and the change after rounding, at most 1.

    Raises:
        UserError: there is no such model, `out` is not an empty folder, the hub refuses the model,
            the model has no adapter or no supported GGUF form, or `form` would lose a head.
    """
    run = prepare(config)
    source = run.find_policy(target)
    heads = head_files(source)
    _refuse_unwritable(out, form, source, heads)
    tokenizer = load_tokenizer(str(source))
    place = out.resolve()
    partial, file = place.with_name(f"{place.name}.partial"), out / f"{place.name}.gguf"
    shutil.rmtree(partial, ignore_errors=True)
    cosine, base = None, ""
    if form.adapter:
        base, *serve = _write_adapter(source, partial, out, form.base)
        contents = f"the adapter alone, of the base model {base}"
    else:
        model, cosine = merged_model(str(source), form.dtype)
        model.generation_config = generation_config(model, tokenizer, target)
        model.save_pretrained(partial, safe_serialization=True)
        kind = str(model.dtype).removeprefix("torch.")
        contents = f"the {'adapter merged into its base model' if is_adapter(str(source)) else 'model'}, in {kind}"
        serve = [f"vllm serve {out}", f"transformers serve {out}"]
        if heads:  # other servers would ignore the head
            serve = [f"text2grad serve {run.path} --critic.kind reward_model --critic.reward_model.folder {out}"]
    verdict = source.parent / GATE_FILE
    for path in (*heads.values(), *([verdict] if verdict.is_file() else [])):
        shutil.copyfile(path, partial / path.name)
    make_readable(partial)
    tokenizer.save_pretrained(partial)
    (partial / SETTINGS_FILE).write_text(dump_config(config), encoding="utf-8")
    obstacle = find_obstacle(model, tokenizer) if form.gguf else None
    if form.gguf and obstacle is None:
        write_gguf(model, tokenizer, partial, partial / file.name)
        contents = f"{contents}, and {file.name}"
        serve.append(f"llama-server -m {file}")
    card = _card(config, run, target, license_name, contents, base)
    (partial / "README.md").write_text(card, encoding="utf-8")
    os.replace(partial, place)
    if obstacle is not None:
        command = f"python convert_hf_to_gguf.py {out} --outfile {file}"
        problem = f"no GGUF file was written: {obstacle}; the rest of {out} is complete"
        raise UserError(problem, f"use the converter of llama.cpp: {command}")
    if hub:
        _push(out, hub)
    kept = {} if cosine is None else {"kept": cosine}
    return {"out": str(out), "written": contents, "serve": tuple(serve), **kept, **({"hub": hub} if hub else {})}


def _refuse_unwritable(out: Path, form: MergeForm, source: Path, heads: Iterable[str]) -> None:
    """Refuse what cannot be written completely, before anything is written."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} is not empty", "set --out to a new folder")
    if form.gguf:
        with optional_packages():
            import gguf  # noqa: F401
    if heads and (form.gguf or form.adapter):
        problem = f"{source} has a head ({', '.join(heads)}) that --gguf and --adapter would lose"
        raise UserError(problem, "remove both options: a merged folder keeps the head")


def generation_config(model: Any, tokenizer: Any, target: str) -> GenerationConfig:
    """Return the sampling defaults for servers, with the stop tokens of training.

    A policy keeps the base model's sampling settings and penalties. A reward model is decoded
    greedily, without penalties, which would change its critiques.
    """
    ids: dict[str, Any] = {"eos_token_id": stop_ids(tokenizer, model), "pad_token_id": tokenizer.pad_token_id}
    if target == REWARD_MODEL:
        return GenerationConfig(bos_token_id=tokenizer.bos_token_id, **ids)  # type: ignore[no-untyped-call]
    config: GenerationConfig = copy.deepcopy(model.generation_config)
    for name, value in ids.items():
        setattr(config, name, value)
    try:
        config.validate(strict=True)
    except ValueError:  # a temperature for servers that always sample; it cannot be saved without do_sample
        config.do_sample = True
    return config


def _write_adapter(source: Path, partial: Path, out: Path, base: str) -> tuple[str, str]:
    """Write only the adapter of `source` to `partial`.

    Returns:
        The name of the base model, and the command that serves `out`.

    Raises:
        UserError: there is no adapter, it is damaged, or its base model is a GGUF file.
    """
    if not is_adapter(str(source)):
        raise UserError(f"{source} is a full model, not an adapter", "merge it without --adapter")
    refuse_damaged(source)
    config = json.loads((source / ADAPTER_CONFIG).read_text(encoding="utf-8"))
    config[BASE] = base or _name_of_base(base_model_name(str(source)))
    partial.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source / ADAPTER_FILE, partial / ADAPTER_FILE)
    (partial / ADAPTER_CONFIG).write_text(to_json(config, indent=2) + "\n", encoding="utf-8")
    rank = f" --max-lora-rank {config['r']}" if config.get("r", 0) > VLLM_RANK else ""
    options = f"--enable-lora{rank} --lora-modules {out.resolve().name}={out}"
    return config[BASE], f"vllm serve {config[BASE]} {options}"


def _name_of_base(base: str) -> str:
    """Return the name of a base model for other programs: on the hub, else its folder.

    Raises:
        UserError: the base model is a GGUF file, to which other programs cannot add an adapter.
    """
    if base == SMOLLM2:
        warn_once(
            f"the adapter was trained on the dequantised weights of {GGUF}; those of {HUB_NAME} differ slightly"
        )
        return HUB_NAME
    if is_gguf(base):
        problem = f"other programs cannot add an adapter to its base model, the GGUF file {base}"
        raise UserError(problem, "set --base to the model it was converted from, or merge without --adapter")
    in_cache = IN_HUB_CACHE.search(base)
    return f"{in_cache[1]}/{in_cache[2]}" if in_cache else base


def merged_model(folder: str, dtype: DType | None) -> tuple[Any, float | None]:
    """Merge the adapter of a model into its weights.

    Returns:
        The model, and the cosine of the trained change and the change after rounding; None if
        nothing is rounded.
    """
    if not is_adapter(folder):
        return load_model(folder, dtype or "auto"), None
    model, target_dtype = load_model(folder, "auto"), getattr(torch, dtype or "float32")
    sums = torch.zeros(3, dtype=torch.float64)
    for _, layer, before in merge_layers(model):
        trained = layer.weight.detach() - before
        layer.to(target_dtype)
        rounded = layer.weight.detach().float() - before.to(target_dtype).float()
        pairs = ((trained, rounded), (trained, trained), (rounded, rounded))
        sums += torch.stack([(a.double() * b.double()).sum() for a, b in pairs])
    product, *norms = sums.tolist()
    cosine = product / (norms[0] * norms[1]) ** 0.5 if all(norms) else float(not any(norms))
    merged = cast_weights(model.unload(), target_dtype)
    return merged, None if target_dtype == torch.float32 else cosine


def _card(config: Config, run: RunFolder, target: str, license_name: str, contents: str, base: str) -> str:
    """Return the model card; `base` is empty unless only the adapter is written."""
    note = run.path / MODEL_NOTE
    origin = read_json(note) if note.is_file() else {}
    stage = {REWARD_MODEL: "train-reward", SFT: "sft"}.get(target, f"train --name {target}")
    is_run = Path(target).name == target  # otherwise a folder, whose command is not known
    return render_text(
        "card.md.j2",
        title=f"{config.task.name}: {Path(target).name}",
        role="reward model" if target == REWARD_MODEL else "policy",
        base=base or ("" if config.policy.model == TINY else origin.get("hub") or config.policy.model),
        origin=origin.get("text", ""),
        license=license_name,
        data=config.task.data or f"the task {config.task.name!r}",
        command=f"text2grad {stage} --config {SETTINGS_FILE}" if is_run else "",
        written=contents,
        adapter=bool(base),
        versions={name: version(name) for name in PACKAGES},
        metrics=_metrics(run, target),
    )


def _metrics(run: RunFolder, target: str) -> dict[str, float]:
    """Return the figures of a model; figures on other tasks have the task's name as a prefix."""
    metrics = _figures(run.evaluation / f"{target}.json") | _figures(run.results / f"{target}.json")
    for file in sorted(run.evaluation.glob(f"*/{target}.json")):
        if file.parent != run.results:
            metrics |= {f"{file.parent.name}: {name}": value for name, value in _figures(file).items()}
    return metrics


def _figures(file: Path) -> dict[str, float]:
    if not file.is_file():
        return {}
    figures = read_json(file)
    return {name: float(value) for name, value in figures.items() if isinstance(value, int | float)}


def _push(folder: Path, name: str) -> None:
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        api.create_repo(name, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=folder)
    except (OSError, ValueError) as error:  # HfHubHTTPError is an OSError
        raise UserError(
            f"{folder} is complete, but was not pushed to {name!r}: {first_line(error)}", "hf auth login"
        ) from error
