"""What the arguments mean together, and the run from text to report."""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from . import checkpoint, measure, report
from .attention import Attention, make_attention, why_not
from .config import ModelConfig, TrainConfig
from .data import Corpus, even_windows, split, standard_library, text_files
from .evaluate import bigram_bits, gzip_bits, held_out_bound, unigram_bits
from .loop import Run, new_run, train
from .options import make_parser
from .sample import generate

_LONG_WINDOW = 2048  # of the second shape that is measured
_MAX_HEAD_DIM = 256
_PRECISION = {"cpu": "float32", "cuda": "bfloat16"}  # where none is given

# A checkpoint fixes these; with --resume they cannot be given.
_FIXED = {
    "block_size": "model",
    "length": "model",
    "layers": "model",
    "width": "model",
    "heads": "model",
    "kv_heads": "model",
    "hidden": "model",
    "batch": "train",
    "lr": "train",
    "embedding_lr": "train",
    "weight_decay": "train",
    "warmup": "train",
    "decay": "train",
    "seed": "train",
    "noise": "train",
    "clip": "train",
    "precision": "train",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the trainer; returns the exit status (0; 130 where a signal stopped it)."""
    parser = make_parser()
    args = parser.parse_args(argv)
    try:
        return _run(args)
    except ValueError as error:
        parser.error(str(error))


def _run(args: argparse.Namespace) -> int:
    model_config, train_config = _configs(args)  # bad arguments end here, before any work
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    precision = checkpoint.precision(Path(args.resume)) if args.resume else args.precision
    device, attention = _device(args.device, args.attention, precision)
    if args.resume:
        run, folder, corpus, source = _resume(args, device)
    else:
        _check_sample(args, model_config)
        corpus, source = _corpus(args.text, model_config.length)
        precision = precision or _PRECISION[device.type]
        train_config = dataclasses.replace(train_config, precision=precision)
        run = new_run(model_config, train_config, device)
        folder = _new_folder(args.output)
    extra = {"text": source, "fingerprint": corpus.fingerprint()}
    _introduce(run, folder, corpus, device, args)

    complete = run.progress() >= 1 or train(
        run,
        corpus.train,
        attention,
        save=lambda run: checkpoint.save(folder, run, extra),
        save_every=args.checkpoint_every,
    )
    if not complete:
        print(
            f"\nstopped after step {run.step}; continue with: "
            f"python -m stepwell.train --resume {folder}"
        )
        return 130
    _finish(run, folder, corpus, device, attention, args)
    return 0


def _resume(
    args: argparse.Namespace, device: torch.device
) -> tuple[Run, Path, Corpus, list[str] | None]:
    folder = Path(args.resume)
    changes = {}
    if args.steps is not None or args.minutes is not None:
        changes = {"steps": args.steps, "minutes": args.minutes}
    run, extra = checkpoint.load(folder, device, **changes)
    _check_sample(args, run.model_config)
    corpus, source = _corpus(args.text or extra["text"], run.model_config.length)
    if corpus.fingerprint() != extra["fingerprint"]:
        raise ValueError(
            f"--resume: the text ({corpus.source}) is not what {folder} was trained on; accepted: "
            "the same files, unchanged"
        )
    return run, folder, corpus, source


def _corpus(text: list[str] | None, length: int) -> tuple[Corpus, list[str] | None]:
    """The text, and the absolute paths of its files (None: the standard library)."""
    if text is None:
        return split(*standard_library(), length), None
    source, contents = text_files(text)
    return split(source, contents, length), list(contents)


def _new_folder(output: str | None) -> Path:
    folder = Path(output or time.strftime("runs/%Y%m%d-%H%M%S"))
    if checkpoint.exists(folder):
        raise ValueError(
            f"--output: {folder} holds a run; accepted: another folder, or --resume {folder}"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--output: cannot make {folder} ({error.strerror})") from None
    return folder


def _device(wanted: str, name: str, precision: str | None) -> tuple[torch.device, Attention]:
    """The device to train on; "auto" is a GPU where the attention runs there."""

    def missing(device: str) -> str | None:
        return why_not(name, torch.device(device), precision or _PRECISION[device])

    if wanted == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device: cuda is not available to torch; accepted: auto, cpu")
    if wanted != "cpu" and torch.cuda.is_available():
        reason = missing("cuda")
        if reason is None:
            return torch.device("cuda"), make_attention(name)
        if wanted == "cuda":
            raise ValueError(f"--device: attention {name} does not run on cuda: {reason}")
        print(f"a GPU is there, but attention {name} does not run on it ({reason}): using the CPU")
    reason = missing("cpu")
    if reason is not None:
        raise ValueError(f"--attention: {name} does not train on cpu: {reason}")
    return torch.device("cpu"), make_attention(name)


def _precision_text(precision: str) -> str:
    return "bfloat16 by autocast" if precision == "bfloat16" else precision


def _introduce(
    run: Run, folder: Path, corpus: Corpus, device: torch.device, args: argparse.Namespace
) -> None:
    config = run.model_config
    print(
        f"text      {corpus.source}\n"
        f"          {len(corpus.train):,} bytes of {len(corpus.train_files)} files, "
        f"{len(corpus.held_out):,} bytes of {len(corpus.held_out_files)} files held out\n"
        f"model     {run.model.parameter_count():,} parameters; {config.layers} layers, "
        f"width {config.width}, {config.heads} heads ({config.kv_heads} for keys and values), "
        f"block size {config.block_size}, windows of {config.length} bytes\n"
        f"device    {device.type}, {torch.get_num_threads()} threads, "
        f"{_precision_text(run.train_config.precision)}; attention: {args.attention}\n"
        f"folder    {folder}",
        flush=True,
    )


def _finish(
    run: Run,
    folder: Path,
    corpus: Corpus,
    device: torch.device,
    attention: Attention,
    args: argparse.Namespace,
) -> None:
    """Evaluates, samples, measures and reports."""
    precision = run.train_config.precision
    windows = even_windows(corpus.held_out, run.model_config.length, args.eval_bytes)
    print(f"evaluating on {windows.numel():,} held-out bytes", flush=True)
    bound = held_out_bound(run.model, windows, attention, precision)
    same_text = windows.flatten()
    held_out = {
        **dataclasses.asdict(bound),
        "bytes": windows.numel(),
        "unigram": unigram_bits(corpus.train, same_text),
        "bigram": bigram_bits(corpus.train, same_text),
        "gzip": gzip_bits(same_text),
    }
    report.plot_loss(folder / "loss.png", run.history, held_out)

    generated = generate(
        run.model,
        args.prompt.encode(),
        args.sample_bytes,
        attention,
        steps=args.sample_steps,
        temperature=args.temperature,
        top_p=args.top_p,
        seed=run.train_config.seed,
        precision=precision,
    )
    sample = args.prompt + generated.decode("utf-8", "replace")
    report.write_text(folder / "sample.txt", sample)

    rows = []
    if args.table:
        print("measuring step time and memory of the attentions", flush=True)
        batch, length = run.train_config.batch, run.model_config.length
        size = run.model_config.block_size
        long = _LONG_WINDOW // size * size
        shapes = [(length, batch)]
        if long > length:
            shapes.append((long, max(1, batch * length // long)))
        rows = measure.measure(run.model_config, run.train_config, device, shapes)
    text = report.write(
        folder,
        {
            "text": {
                "source": corpus.source,
                "train_bytes": len(corpus.train),
                "train_files": len(corpus.train_files),
                "held_out_bytes": len(corpus.held_out),
                "held_out_files": len(corpus.held_out_files),
                "fingerprint": corpus.fingerprint(),
            },
            "model": dataclasses.asdict(run.model_config),
            "parameters": run.model.parameter_count(),
            "train": dataclasses.asdict(run.train_config),
            "training": {
                "steps": run.step,
                "seconds": run.elapsed,
                "tokens": run.tokens(),
                "tokens_per_second": run.tokens() / run.elapsed,
                "threads": torch.get_num_threads(),
                "precision": _precision_text(precision),
            },
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            "attention": args.attention,
            "torch": torch.__version__,
            "held_out": held_out,
            "sample": {"prompt": args.prompt, "text": sample},
            "measurements": [dataclasses.asdict(row) for row in rows],
        },
    )
    print(f"\n{text}\nin {folder}: report.md, report.json, loss.png, sample.txt, checkpoints/")


def _configs(args: argparse.Namespace) -> tuple[ModelConfig, TrainConfig]:
    """The settings of a new run; with --resume only their absence is checked."""
    given = {name: value for name in _FIXED if (value := getattr(args, name)) is not None}
    if args.resume:
        if given:
            name = next(iter(given))
            raise ValueError(
                f"--{name.replace('_', '-')}: {_text(given[name])} given with --resume; accepted: "
                "settings of the checkpoint, which it keeps"
            )
        if args.output is not None:
            raise ValueError(f"--output: {args.output} given with --resume; accepted: one of them")
        return ModelConfig(), TrainConfig()
    model = ModelConfig(**{k: v for k, v in given.items() if _FIXED[k] == "model"})
    if model.length % model.block_size:
        raise ValueError(
            f"--length: {model.length}; accepted: a multiple of --block-size, {model.block_size}"
        )
    if model.width % (8 * model.heads) or model.head_dim > _MAX_HEAD_DIM:
        raise ValueError(
            f"--width: {model.width}; accepted: 8 to {_MAX_HEAD_DIM} times --heads, "
            f"{model.heads}, in steps of 8 per head"
        )
    if model.heads % model.kv_heads:
        raise ValueError(
            f"--kv-heads: {model.kv_heads}; accepted: a divisor of --heads, {model.heads}"
        )
    settings: dict[str, Any] = {k: v for k, v in given.items() if _FIXED[k] == "train"}
    if "clip" in settings:
        low, high = settings["clip"] = tuple(settings["clip"])
        if not 0 <= low < high <= 1:
            raise ValueError(f"--clip: {low:g} {high:g}; accepted: 0 <= LOW < HIGH <= 1")
        if settings.get("noise", "count") != "time":
            raise ValueError(f"--clip: {low:g} {high:g}; accepted: only with --noise time")
    if args.steps is not None or args.minutes is not None:
        settings |= {"steps": args.steps, "minutes": args.minutes}
    return model, TrainConfig(**settings)


def _check_sample(args: argparse.Namespace, model: ModelConfig) -> None:
    prompt = len(args.prompt.encode())
    if args.sample_bytes is None:
        args.sample_bytes = max(0, model.length - prompt)
    if prompt + args.sample_bytes > model.length:
        raise ValueError(
            f"--sample-bytes: {args.sample_bytes} after a prompt of {prompt}; accepted: together "
            f"at most --length, {model.length}"
        )
    if args.sample_steps is not None and args.sample_steps > model.block_size:
        raise ValueError(
            f"--sample-steps: {args.sample_steps}; accepted: 1 to --block-size, {model.block_size}"
        )


def _text(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
