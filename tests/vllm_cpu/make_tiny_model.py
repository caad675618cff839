"""Write a Llama that is all configuration: no weights, and a tokenizer of a thousand tokens, for --load-format dummy.

From the command line: python -m vllm_cpu.make_tiny_model FOLDER HIDDEN LAYERS
"""

import json
import sys
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from string import ascii_lowercase
from typing import Any

SPECIAL_TOKENS = ("<pad>", "<bos>", "<eos>")
POSITIONS = 8192
_HEAD_WIDTH = 64

_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


@dataclass(frozen=True, slots=True)
class Size:
    """How large a model is: the width of its hidden state (a multiple of 128) and its number of layers."""

    hidden: int
    layers: int


TINY = Size(128, 2)  # starts fast: for what happens to a server
MID = Size(256, 4)  # a step over a thousand tokens takes some 70 ms on two cores: for latencies


def write_model(folder: Path, size: Size) -> None:
    """Write the model's folder, replacing the files of another one. A server may be reading those of this one."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "config.json": _config(size),
        "generation_config.json": _token_ids(),
        "tokenizer.json": _tokenizer(),
        "tokenizer_config.json": _tokenizer_config(),
    }
    for name, content in files.items():
        file, text = folder / name, json.dumps(content, indent=1)
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")


def _config(size: Size) -> dict[str, Any]:
    heads = size.hidden // _HEAD_WIDTH
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": size.hidden,
        "intermediate_size": 3 * size.hidden,
        "num_hidden_layers": size.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 2,
        "head_dim": _HEAD_WIDTH,
        "hidden_act": "silu",
        "max_position_embeddings": POSITIONS,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "rms_norm_eps": 1e-5,
        "vocab_size": len(_vocabulary()),
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        **_token_ids(),
    }


def _token_ids() -> dict[str, int]:
    return {f"{token.strip('<>')}_token_id": number for number, token in enumerate(SPECIAL_TOKENS)}


def _tokenizer() -> dict[str, Any]:
    """Return a byte-level BPE that knows every byte and every pair of letters."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "added_tokens": [_added(number, token) for number, token in enumerate(SPECIAL_TOKENS)],
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "vocab": {token: number for number, token in enumerate(_vocabulary())},
            "merges": [f"{first} {second}" for first, second in _pairs()],
        },
    }


def _vocabulary() -> list[str]:
    """Return the tokens in the order of their numbers. A random model draws any of them, so each has a text."""
    return [*SPECIAL_TOKENS, *byte_letters(), *("".join(pair) for pair in _pairs())]


def _pairs() -> list[tuple[str, str]]:
    return list(product(ascii_lowercase, ascii_lowercase))


def _added(number: int, token: str) -> dict[str, Any]:
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": token, "special": True, **plain}


def _tokenizer_config() -> dict[str, Any]:
    names = {f"{token.strip('<>')}_token": token for token in SPECIAL_TOKENS}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": POSITIONS,
        "clean_up_tokenization_spaces": False,
        "chat_template": _CHAT_TEMPLATE,
        **names,
    }


def byte_letters() -> list[str]:
    """Return the printable letter that byte-level BPE writes for each byte, as GPT-2's tokenizer laid down.

    Printable Latin-1 stands for itself; the others are numbered on from U+0100, in their order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


if __name__ == "__main__":
    write_model(Path(sys.argv[1]), Size(int(sys.argv[2]), int(sys.argv[3])))
