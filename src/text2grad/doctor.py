"""`text2grad doctor`: check this machine and a model folder, with a cure for each problem.

A check never changes anything, never uses the network, and never prints a key.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

KEYS = ("OPENAI_API_KEY", "HF_TOKEN")
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
DEMO_MEMORY_GB = 4.0
DEMO_DISK_GB = 0.5
SANDBOX_MEMORY_MB = 1024


@dataclass(frozen=True)
class Check:
    """One finding; `cure` is empty where nothing need be done."""

    name: str
    ok: bool
    detail: str
    cure: str = ""


def examine(model: Path | None = None) -> list[Check]:
    """All checks of this machine, and of a model folder if one is given."""
    python = f"{'.'.join(map(str, sys.version_info[:3]))} ({sys.executable})"
    checks = [Check("python", True, python), *check_packages()]
    usable = all(check.ok for check in checks)
    if usable:
        checks += check_devices()
    for name in KEYS:  # they are never shown
        is_set = "set" if os.environ.get(name) else "not set (only needed for paid critics or gated models)"
        checks.append(Check(name, True, is_set))
    checks += [*check_sandbox(), check_demo(usable)]
    return [*checks, *check_model(model)] if usable and model is not None else checks


def as_text(checks: list[Check]) -> str:
    """One line a check; a failed one is followed by its cure."""
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        lines.append(f"{'ok  ' if check.ok else 'FAIL'}  {check.name:{width}}  {check.detail}")
        if check.cure:
            lines.append(f"{'':{width + 8}}-> {check.cure}")
    return "\n".join(lines)


def as_dict(checks: list[Check]) -> dict[str, Any]:
    """The findings as plain data: `ok`, and `checks` as a list."""
    return {"ok": all(check.ok for check in checks), "checks": [asdict(check) for check in checks]}


def check_packages() -> Iterator[Check]:
    """Every package text2grad needs, the extra `train` included, in a version that it supports."""
    from packaging.requirements import Requirement

    try:
        lines = requires("text2grad") or []
    except PackageNotFoundError:  # a checkout on PYTHONPATH
        yield Check("text2grad", False, "not installed, only found on the path", "pip install -e '.[train]'")
        return
    for line in lines:
        requirement = Requirement(line)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": "train"}):
            continue
        name, supported = requirement.name, requirement.specifier
        try:
            installed = version(name)
        except PackageNotFoundError:
            yield Check(name, False, "not installed", "pip install 'text2grad[train]'")
            continue
        fits = supported.contains(installed, prereleases=True)
        cure = "" if fits else f"pip install '{name}{supported}'"
        yield Check(name, fits, f"{installed} (supported: {supported})", cure)


def check_devices() -> Iterator[Check]:
    """CPU and GPUs. A CPU is enough for the demo, so nothing here is a failure."""
    import torch

    cores, threads = os.cpu_count() or 1, torch.get_num_threads()
    yield Check("cpu", True, f"{cores} cores, {threads} threads of torch, {_memory_gb():.1f} GB of memory")
    names = map(torch.cuda.get_device_name, range(torch.cuda.device_count()))
    yield Check("gpu", True, ", ".join(names) or "none: enough for the demo; larger models need one")


def check_sandbox() -> Iterator[Check]:
    """The sandbox: each tier is started, and a program inside tries to get out.

    One tier is enough; without any, programs are not run unless `sandbox.tier` is `none`.
    """
    from text2grad.sandbox import CURE, probe_tiers

    probes = list(probe_tiers(SANDBOX_MEMORY_MB))
    best = next((probe.tier for probe in probes if probe.works), None)
    for probe in probes:
        held = f"holds: a program inside could not {', '.join(probe.held)}"
        words = held if probe.works else f"not here: {probe.reason}"
        yield Check(f"sandbox {probe.tier}", best is not None, words, "" if best else CURE)
    yield Check("sandbox", best is not None, f"programs run in the tier {best}" if best else "no tier works")


def check_demo(packages_fit: bool) -> Check:
    """Whether `text2grad demo` can run: packages, memory, and a writable folder."""
    here, problem = Path.cwd(), partial(Check, "demo", False)
    if not packages_fit:
        return problem("cannot run", "fix the failed checks above")
    if _memory_gb() < DEMO_MEMORY_GB:
        return problem(f"needs {DEMO_MEMORY_GB:.0f} GB of memory", "use a larger machine")
    if not os.access(here, os.W_OK):
        return problem(f"cannot write to {here}", "change to a folder of your own")
    free = shutil.disk_usage(here).free / 1e9
    if free < DEMO_DISK_GB:
        return problem(f"{free:.1f} GB free in {here}", f"free {DEMO_DISK_GB} GB")
    return Check("demo", True, "will run: text2grad demo")


def check_model(folder: Path) -> list[Check]:
    """A model folder in Hugging Face form: configuration, tokenizer, chat template, weights."""
    if not folder.is_dir():
        return [Check("model", False, f"no folder {folder}", "download the model, or correct the path")]
    checks = [_check_configuration(folder), *_check_tokenizer(folder), *_check_weights(folder)]
    if not all(check.ok for check in checks):
        return checks
    return [_check_whole(folder, check) if check.name == "weights" else check for check in checks]


def _check_configuration(folder: Path) -> Check:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    problem = partial(Check, "model config", False)
    try:
        kind = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("model_type")
    except OSError:
        return problem("no config.json", "name the folder of a whole model; adapters alone are not enough")
    except (ValueError, AttributeError):
        return problem("config.json is not a JSON object", "download the model again")
    if kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return problem(f"model_type {kind!r} is not a causal language model of transformers", "use another model")
    return Check("model config", True, kind)


def _check_tokenizer(folder: Path) -> Iterator[Check]:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        cure = "copy tokenizer.json and tokenizer_config.json into the folder"
        yield Check("tokenizer", False, f"cannot be loaded: {reason:.120}", cure)
        return
    yield Check("tokenizer", True, f"{type(tokenizer).__name__}, {len(tokenizer)} tokens")
    cure = "" if tokenizer.chat_template else "give a Jinja file with --policy.chat_template FILE"
    yield Check("chat template", not cure, "none" if cure else "present", cure)


def _check_weights(folder: Path) -> Iterator[Check]:
    pickles = sorted(file.name for file in folder.iterdir() if file.suffix in PICKLES)
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        detail = f"only pickles ({', '.join(pickles)}), which are never loaded" if pickles else "none"
        yield Check("weights", False, detail, "get the model as safetensors: model.save_pretrained(FOLDER)")
        return
    problem = next(filter(None, map(_damage, weights)), "") or _missing_shards(folder)
    detail = f"{len(weights)} safetensors, {sum(file.stat().st_size for file in weights) / 1e9:.2f} GB"
    yield Check("weights", not problem, problem or detail, "download the file again" if problem else "")
    if pickles:
        cure = f"delete {', '.join(pickles)}: a pickle can run any program when it is loaded"
        yield Check("no pickles", False, f"{len(pickles)} next to the safetensors; they are never loaded", cure)


def _check_whole(folder: Path, check: Check) -> Check:
    """The check of weights, after loading the model as training would: headers do not show missing weights."""
    import transformers

    from text2grad.errors import UserError
    from text2grad.policy.files.tokenizer import load_tokenizer
    from text2grad.policy.files.weights import refuse_other_vocabulary
    from text2grad.policy.load import load_model

    size = sum(file.stat().st_size for file in folder.glob("*.safetensors")) / 1e9
    if size > _memory_gb() / 2:
        return replace(check, detail=f"{check.detail}; not loaded: more than half of this machine's memory")
    transformers.utils.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        refuse_other_vocabulary(str(folder), load_tokenizer(str(folder)), load_model(str(folder), "auto"))
    except UserError as error:
        return Check(check.name, False, error.problem, error.cure)
    return check


def _damage(file: Path) -> str:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as tensors:
            tensors.keys()
    except (SafetensorError, OSError) as error:
        return f"{file.name} is damaged: {error}"
    return ""


def _missing_shards(folder: Path) -> str:
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return ""
    try:
        files = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError, AttributeError):
        return f"{index.name} is damaged"
    missing = sorted(name for name in files if not (folder / name).is_file())
    return f"missing {', '.join(missing)}" if missing else ""


def _memory_gb() -> float:
    """Memory of this machine, or of its container if that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # no such file, or "max"
            total = min(total, int(Path(file).read_text(encoding="ascii")) / 1e9)
    return total
