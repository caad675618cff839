"""The command line of the simulated `vllm serve`: vLLM's own options, as literal declarations that can be read as text.

Names, defaults and kinds: engine/arg_utils.py and entrypoints/openai/cli_args.py of vLLM 0.26. What the simulation does
not act on is accepted all the same.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

_SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_JSON_OPTIONS = {
    "-cc": "--compilation-config",
    "--compilation-config": "--compilation-config",
    "--speculative-config": "--speculative-config",
}


def human_int(text: str) -> int:
    """Read an integer as vLLM takes it: `8192`, `32k` (32000), `32K` (32768), `25.6k`; ValueError otherwise."""
    factor = _SUFFIXES.get(text[-1:])
    return int(text) if factor is None else int(float(text[:-1]) * factor)


def length_or_auto(text: str) -> int:
    """Read --max-model-len: -1 stands for `auto`, the longest length that fits."""
    return -1 if text == "auto" else human_int(text)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser; like vLLM's it ends the process with code 2 on an option that it does not know."""
    parser = argparse.ArgumentParser(prog="vllm serve", usage="vllm serve [model_tag] [options]")
    _add_server(parser)
    _add_model(parser)
    _add_memory(parser)
    _add_scheduler(parser)
    return parser


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse what follows `serve`: underscores are dashes, dotted options make JSON, --config is read first."""
    return build_parser().parse_args(_with_config_file(_gather_dotted(_dashed(argv))))


def non_default(args: argparse.Namespace) -> dict[str, object]:
    """Return what differs from the defaults, as vLLM logs it."""
    defaults = vars(build_parser().parse_args([]))
    return {name: value for name, value in vars(args).items() if value != defaults[name]}


def _dashed(argv: Sequence[str]) -> list[str]:
    """Turn the underscores of option names into dashes, leaving values alone."""
    heads = (arg.partition("=") for arg in argv)
    return [
        head.replace("_", "-") + equals + value if head.startswith("--") else head + equals + value
        for head, equals, value in heads
    ]


def _gather_dotted(argv: Sequence[str]) -> list[str]:
    """Collect `-cc.mode 3` and `--speculative-config.method=ngram` into one JSON value for each option."""
    kept: list[str] = []
    gathered: dict[str, dict[str, object]] = {}
    rest = iter(argv)
    for arg in rest:
        name, dot, path = arg.partition(".")
        if not dot or name not in _JSON_OPTIONS:
            kept.append(arg)
            continue
        key, equals, value = path.partition("=")
        node = gathered.setdefault(_JSON_OPTIONS[name], {})
        *parents, leaf = key.split(".")
        for parent in parents:
            child = node.setdefault(parent, {})
            node = child if isinstance(child, dict) else {}
        node[leaf] = value if equals else next(rest, "")
    return kept + [part for name, value in gathered.items() for part in (name, json.dumps(value))]


def _with_config_file(argv: list[str]) -> list[str]:
    """Put the options of `--config FILE` (flat YAML, lists in brackets) first, so that the command line wins."""
    if "--config" not in argv[:-1]:
        return argv
    at = argv.index("--config")
    lines = Path(argv[at + 1]).read_text(encoding="utf-8").splitlines()
    known = build_parser().format_help()
    from_file: list[str] = []
    for line in lines:
        key, colon, value = (part.strip() for part in line.split("#", 1)[0].partition(":"))
        name = key.replace("_", "-")
        match (colon, value.lower()):
            case ("", _):
                continue
            case (_, "true"):
                from_file.append(f"--{name}")
            case (_, "false"):
                from_file += [f"--no-{name}"] if f"--no-{name}" in known else []
            case _:
                items = value.strip("[]").split(",") if value.startswith("[") else [value]
                from_file += [f"--{name}", *(item.strip().strip("'\"") for item in items)]
    return from_file + argv[:at] + argv[at + 2 :]


def _add_server(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model_tag", type=str, nargs="?", default=None)
    parser.add_argument("--config", type=str, default=None)
    parser.add_argument("--host", type=str, default=None)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--api-key", type=str, nargs="+", default=None)
    parser.add_argument("--root-path", type=str, default=None)
    parser.add_argument("--middleware", type=str, action="append", default=[])
    parser.add_argument("--chat-template", type=str, default=None)
    parser.add_argument("--tool-call-parser", type=str, default=None)
    parser.add_argument("--enable-auto-tool-choice", action=argparse.BooleanOptionalAction, default=False)
    parser.add_argument("--reasoning-parser", type=str, default="")
    parser.add_argument("--disable-log-stats", action="store_true")
    parser.add_argument("--enable-log-requests", action=argparse.BooleanOptionalAction, default=False)
    parser.add_argument("--shutdown-timeout", type=int, default=0)


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=str, default="Qwen/Qwen3-0.6B")
    parser.add_argument("--served-model-name", type=str, nargs="+", default=None)
    parser.add_argument("--tokenizer", type=str, default=None)
    parser.add_argument("--revision", type=str, default=None)
    parser.add_argument("--download-dir", type=str, default=None)
    parser.add_argument("--load-format", type=str, default="auto")
    parser.add_argument("--trust-remote-code", action=argparse.BooleanOptionalAction, default=False)
    parser.add_argument("--dtype", type=str, choices=["auto", "bfloat16", "float16", "float32", "half"], default="auto")
    parser.add_argument("--quantization", "-q", type=str, default=None)
    parser.add_argument("--runner", type=str, choices=["auto", "draft", "generate", "pooling"], default="auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--generation-config", type=str, default="auto")
    parser.add_argument("--max-model-len", type=length_or_auto, default=None)
    parser.add_argument("--tensor-parallel-size", "-tp", type=int, default=1)
    parser.add_argument("--enforce-eager", action=argparse.BooleanOptionalAction, default=False)
    parser.add_argument("--optimization-level", "-O", type=int, default=2)
    parser.add_argument("--compilation-config", "-cc", type=json.loads, default=None)
    parser.add_argument("--speculative-config", type=json.loads, default=None)
    parser.add_argument("--max-cudagraph-capture-size", type=int, default=None)


def _add_memory(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gpu-memory-utilization", type=float, default=0.92)
    parser.add_argument("--kv-cache-memory-bytes", type=human_int, default=None)
    parser.add_argument("--kv-cache-dtype", type=str, default="auto")
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--cpu-offload-gb", type=float, default=0)
    parser.add_argument("--kv-offloading-size", type=float, default=None)
    parser.add_argument("--enable-prefix-caching", action=argparse.BooleanOptionalAction, default=True)


def _add_scheduler(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--max-num-batched-tokens", type=human_int, default=None)
    parser.add_argument("--max-num-seqs", type=human_int, default=None)
    parser.add_argument("--max-num-active-seqs", type=human_int, default=None)
    parser.add_argument("--max-num-scheduled-tokens", type=human_int, default=None)
    parser.add_argument("--enable-chunked-prefill", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--long-prefill-token-threshold", type=human_int, default=0)
    parser.add_argument("--watermark", type=float, default=0.0)
