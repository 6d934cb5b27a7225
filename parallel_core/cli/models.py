"""Commands for weights and text: import and export of Llama weights, packing of token files, and generation from a
checkpoint."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from parallel_core import limits
from parallel_core.analysis.generated import merged, rate, replicas, text, timing, together, whole_rate
from parallel_core.analysis.quantities import bytes_text
from parallel_core.checkpoint import folder as folders
from parallel_core.checkpoint import manifest as manifests
from parallel_core.checkpoint.manifest import CheckpointError
from parallel_core.cli.common import (
    CommandError,
    Subparsers,
    add_command,
    add_no_progress,
    checkpoint_of,
    require_cores,
)
from parallel_core.cli.numbers import number, whole
from parallel_core.data import token_file
from parallel_core.data.corpus import CorpusError
from parallel_core.generation_request import inference, read_request
from parallel_core.launch import GenerationRequest
from parallel_core.layout import Layout
from parallel_core.local import LocalRunner
from parallel_core.model_spec import BYTES
from parallel_core.observe import host
from parallel_core.spec import CORPUS_PATTERN, RunSpec, field_errors


def add(commands: Subparsers) -> None:
    """Adds this module's commands to the parser of the engine."""
    take = add_command(
        commands,
        "import-llama",
        "make a checkpoint of Llama weights (safetensors and config.json)",
        "weights --out folder",
    )
    take.add_argument("weights", type=Path, help="folder with config.json and *.safetensors")
    take.add_argument("--out", type=Path, required=True, help="folder for spec.json and the checkpoint")
    take.add_argument("--seq", type=whole(1), default=1024, help="sequence length of the model (default: 1024)")
    take.set_defaults(run=_import)
    give = add_command(
        commands,
        "export-llama",
        "write a checkpoint of a Llama as safetensors and config.json",
        "tuned --out exported",
    )
    give.add_argument("checkpoint", type=Path, help="a checkpoint, or a run's folder: its newest one")
    give.add_argument("--out", type=Path, required=True, help="folder to write to")
    give.set_defaults(run=_export)
    pack = add_command(
        commands,
        "pack-tokens",
        "make a token file of raw tokens, to train on as tokens:NAME",
        "tokens.bin --vocab 1000 --name web --out data",
    )
    pack.add_argument("source", type=Path, help="little-endian numbers, one after the other")
    pack.add_argument("--bytes", type=int, choices=(2, 4), default=2, help="bytes of a token (default: 2)")
    pack.add_argument("--vocab", type=whole(2, limits.MAX_VOCAB), required=True, help="every token is below it")
    pack.add_argument("--name", required=True, help="what a spec calls it, after 'tokens:'")
    pack.add_argument("--out", type=Path, required=True, help="data folder: --corpora of train, or a worker's corpora")
    pack.set_defaults(run=_pack)


def add_generate(commands: Subparsers) -> None:
    """Adds `generate`, which stands behind the other commands in the list."""
    made = add_command(
        commands,
        "generate",
        "generate text from a checkpoint of a GPT",
        'records --prompt "def "',
        "records --ids 1,15043",
    )
    made.add_argument("checkpoint", type=Path, help="a checkpoint, or a run's folder: its newest one")
    text = made.add_mutually_exclusive_group(required=True)
    text.add_argument("--prompt", help="text to go on from, for a model whose tokens are bytes (vocab up to 256)")
    text.add_argument("--ids", help="numbers of tokens to go on from, e.g. 1,15043")
    made.add_argument("--new", type=whole(1), default=64, help="tokens to generate (default: 64)")
    made.add_argument("--samples", type=whole(1), default=1, help="how many texts (default: 1)")
    made.add_argument("--temperature", type=number, default=0.0, help="0 takes the likeliest token (default: 0)")
    made.add_argument(
        "--top-k", type=whole(0), default=0, help="a temperature draws from so many likeliest, 0: from all (default: 0)"
    )
    made.add_argument("--seed", type=whole(0), default=7, help="of what a temperature above 0 draws (default: 7)")
    made.add_argument("--tp", type=whole(1), default=1, help="devices that share each layer (default: 1)")
    made.add_argument("--pp", type=whole(1), default=1, help="stages of the layers, one after the other (default: 1)")
    made.add_argument("--dp", type=whole(1), default=1, help="replicas that share out the texts (default: 1)")
    kind = "kind of device (default: that of the checkpoint's run)"
    made.add_argument("--device", choices=("cpu", "cuda"), help=kind)
    add_no_progress(made)
    made.add_argument("--no-cache", action="store_true", help="make every token from the whole text again")
    made.add_argument("--json", action="store_true", help="print texts, seconds and bytes as JSON")
    made.set_defaults(run=_generate)


def _import(options: argparse.Namespace) -> int:
    from parallel_core.engine.llama import OWN_TOKENS, import_weights

    if folders.holds_any(options.out):
        raise CommandError(f"--out: {options.out} holds a checkpoint already; name a folder without checkpoints.")
    try:
        spec, manifest = import_weights(options.weights, options.out, options.seq)
    except CheckpointError as error:
        raise CommandError(f"{options.weights} cannot be imported: {error}") from error
    (options.out / "spec.json").write_text(spec.model_dump_json(indent=2))
    print(f"{len(manifest.tensors)} parameters, {bytes_text(manifest.bytes)}; go on from them with:")
    train, vocab = f"python -m parallel_core train {options.out}/spec.json --resume {options.out}", spec.model.vocab
    if spec.train.corpus != f"tokens:{OWN_TOKENS}":
        print(train)
    else:
        print(f"python -m parallel_core pack-tokens FILE --vocab {vocab} --name {OWN_TOKENS} --out DATA")
        print(f"{train} --corpora DATA")
        print(f"Its {vocab} tokens are no bytes: FILE holds the numbers that its own tokenizer makes of text.")
    return 0


def _export(options: argparse.Namespace) -> int:
    from parallel_core.engine.llama import export_weights

    if there := sorted(path.name for path in (*options.out.glob("*.safetensors"), *options.out.glob("config.json"))):
        raise CommandError(f"--out: {options.out} holds {there[0]} already; name a folder without weights.")
    found, _ = checkpoint_of(options.checkpoint)
    try:
        size = export_weights(found, options.out)
    except CheckpointError as error:
        raise CommandError(f"{found} cannot be exported: {error}") from error
    print(f"{bytes_text(size)} in {options.out}")
    return 0


def _pack(options: argparse.Namespace) -> int:
    if not CORPUS_PATTERN.fullmatch(f"tokens:{options.name}"):
        raise CommandError(f"--name is of letters, digits, '.', '_' and '-', at most 64; got {options.name!r}")
    try:
        count = token_file.pack(options.source, options.bytes, options.vocab, options.name, options.out)
    except CorpusError as error:
        raise CommandError(str(error)) from error
    print(f"{count} tokens; train on them with corpus tokens:{options.name}")
    return 0


def _generate(options: argparse.Namespace) -> int:
    found, manifest = checkpoint_of(options.checkpoint)
    spec = _inference(manifest, options)
    request = _request(options, spec)
    if spec.train.device == "cpu":
        require_cores(spec.parallel.world, "--dp x --tp x --pp makes")
    with LocalRunner() as runner, tempfile.TemporaryDirectory(prefix="trainyard-generate-") as folder:
        outcome = runner.run(spec, Path(folder), resume=found, request=request, no_progress_s=options.no_progress)
        if not outcome.ok:
            print(outcome.failure(), file=sys.stderr)
            if spec.train.device == "cuda" and not host.cuda_devices():
                print("No GPU was found on this host; --device cpu generates without one.", file=sys.stderr)
            return 1
        every = range(spec.parallel.world)
        ranks = {rank: told for rank in every if (told := together(outcome.headers(rank, "generated")))}
    said, kept = replicas(ranks, Layout.of(spec)), max(told["kv_bytes"] for told in ranks.values())
    texts = [[*request["prompt"], *tokens] for tokens in merged(said)["tokens"]]
    if options.json:
        print(json.dumps(_as_json(texts, said, kept, spec.model.vocab)))
        return 0
    for tokens in texts:
        print(text(tokens, spec.model.vocab))
    line = f"{timing(said, len(request['prompt']))}; keys and values {bytes_text(kept)} a rank"
    print(line, file=sys.stderr)
    return 0


def _as_json(
    texts: Sequence[Sequence[int]], said: Sequence[Mapping[str, Any]], kept: int, vocab: int
) -> dict[str, Any]:
    """The texts with their prompts, as numbers of tokens and, where these are bytes, as text; what they took."""
    token_s, speed = rate(said) or (None, None)
    return {
        "tokens": texts,
        "texts": [text(tokens, vocab) for tokens in texts] if vocab <= BYTES else None,
        "prefill_s": merged(said)["prefill"],
        "token_s": token_s,
        "tokens_per_s": speed,
        "overall_tokens_per_s": whole_rate(said),
        "kv_bytes": kept,
    }


def _inference(manifest: manifests.Manifest, options: argparse.Namespace) -> RunSpec:
    """Returns the spec of the checkpoint's model on the requested devices."""
    try:
        return inference(manifest.spec, options.tp, options.pp, options.dp, options.device)
    except ValidationError as error:
        raise CommandError(" ".join(field_errors(error).values())) from error
    except ValueError as error:
        raise CommandError(str(error)) from error


def _numbers(ids: str) -> list[int]:
    try:
        return [int(part) for part in ids.split(",")]
    except ValueError as error:
        raise CommandError(f"--ids are numbers with commas between; got {ids!r}") from error


def _prompt(options: argparse.Namespace, vocab: int) -> list[int]:
    """Returns the tokens to go on from. Raises CommandError for text where tokens are no bytes."""
    if options.prompt is None:
        return _numbers(options.ids)
    if vocab > BYTES:
        raise CommandError(
            f"--prompt is read as bytes, and the model's {vocab} tokens are none; give their numbers with --ids"
        )
    return [*options.prompt.encode(errors="surrogateescape")]


def _request(options: argparse.Namespace, spec: RunSpec) -> GenerationRequest:
    prompt = _prompt(options, spec.model.vocab)
    names = ("new", "samples", "temperature", "top_k", "seed")
    asked = {"prompt": prompt, "cached": not options.no_cache, **{name: getattr(options, name) for name in names}}
    request, errors = read_request(asked, spec)
    if request is None:
        raise CommandError(" ".join(f"{field}: {message}" for field, message in errors.items()))
    return request
