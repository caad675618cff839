"""The texts of starts that end the same way each time: adapters, shards, parsers, compilers, limits of the host.

Templates: vLLM 0.5 to 0.33 as read from its source, torch, Triton, FlashInfer, Ray, and the reports in
tests/data/reported.yaml.
"""

from vllmd.decide.numbers import NUMBER
from vllmd.decide.text_row import Row, both, row
from vllmd.model.failure import FailureClass

# What was asked for and does not go together, or is not there.
_ASKED: tuple[Row, ...] = (
    row(
        "swap space",
        rf"Too large swap space\. (?P<swap_gib>{NUMBER}) GiB out of the (?P<host_gib>{NUMBER}) GiB total CPU memory",
        "the swap space of {swap} is too much for the {host} of the host",
        FailureClass.INVALID_COMBINATION,
        cause="swap-space",
    ),
    row(
        "invalid ",
        r"(?P<refusal>invalid (?P<argument>tool call parser|reasoning parser): (?!\{)\S+)",
        "vLLM refuses its arguments: {refusal}",
        FailureClass.INVALID_FLAG,
        cause="value",
    ),
    row(
        "requires --",
        r"rror: (?P<refusal>(?P<argument>--[\w-]+) requires --[\w-]+.*)",
        "vLLM refuses its arguments: {refusal}",
        FailureClass.INVALID_COMBINATION,
        cause="value",
    ),
    row(
        "rror",
        r"VLLM_PORT '[^']{1,200}' appears to be a URI|invalid literal for int\(\) with base 10: 'tcp://",
        "VLLM_PORT holds an address: the cluster sets it for a service named vllm, which needs another name",
        FailureClass.INVALID_FLAG,
        cause="service-variable",
    ),
    row(
        "The supplied chat template",
        r"(?P<refusal>The supplied chat template \([^)]{1,300}\) .{1,100}?failed to be opened)",
        "vLLM refuses its arguments: {refusal}",
        FailureClass.INVALID_FLAG,
    ),
    row(
        "rror",
        r"OSError: \[Errno 99\]",
        "the address to listen on (--host) is none of this host",
        FailureClass.INVALID_FLAG,
    ),
    row(
        "rror",
        r"PermissionError: \[Errno 13\] Permission denied$|\[[Ee]rrno 13\] error while attempting to bind",
        "vLLM may not listen on its port: one below 1024 takes a privilege",
        FailureClass.INVALID_FLAG,
    ),
    row(
        "placement group",
        r"(?P<refusal>\bCannot provide a placement group.*)",
        "the Ray cluster does not have the GPUs that were asked for: {refusal}",
        FailureClass.INVALID_COMBINATION,
        cause="devices",
    ),
    row(
        "rror",
        r"(?P<refusal>Weight \w+ = \d+ is not divisible by weight quantization block_\w = \d+|"
        r"The (?:in|out)put size is not aligned with the quantized weight shape|"
        r"AssertionError: \d+ is not divisible by \d+)",
        "the weights cannot be dealt out to so many ranks: {refusal}; take a smaller tensor-parallel-size",
        FailureClass.INVALID_COMBINATION,
    ),
    row(
        "rror",
        r"(?P<refusal>\bModel \w+ does not support LoRA\b.*|(?<!\S)\S+ is not supported for quantization method .*)",
        "vLLM refuses its arguments: {refusal}",
        FailureClass.INVALID_COMBINATION,
    ),
    row(
        "rror",
        r"(?P<refusal>(?<!\S)\S+ is unsupported LoRA weight|Following weights were not initialized from checkpoint|"
        r"There is no module or parameter named '[^']{1,200}' in \w+|Unrecognized model in \S+|"
        r"model with architecture \S{1,80} is not supported|Attempted to load weight .{1,120}? into parameter)",
        "the files do not fit the model as this vLLM knows it: {refusal}",
        FailureClass.UNSUPPORTED_MODEL,
    ),
    row(
        "Exception",
        r"data did not match any variant of untagged enum",
        "the tokenizer's file is newer than the library that reads it (tokenizers)",
        FailureClass.UNSUPPORTED_MODEL,
    ),
    row(
        "rror",
        r"FileNotFoundError: .{0,60}'(?P<file>[^']{1,300}\.(?:safetensors|bin|pth?|gguf|json|model))'",
        "no model: {file} is missing",
        FailureClass.MODEL_ACCESS,
    ),
    row(
        "CERTIFICATE_VERIFY_FAILED",
        r"CERTIFICATE_VERIFY_FAILED",
        "the model hub's certificate is not trusted here (a proxy's own?); SSL_CERT_FILE names those that are",
        FailureClass.MODEL_ACCESS,
    ),
    row(
        "Duplicate GPU detected",
        r"(?P<refusal>Duplicate GPU detected\b.*)",
        "two ranks were given one device (CUDA_VISIBLE_DEVICES): {refusal}",
        FailureClass.INVALID_COMBINATION,
    ),
)

# What the compilers of a start say: the model, the device, or the host is not what they expect.
_COMPILING: tuple[Row, ...] = (
    row(
        "rror",
        r"(?:CUDA|HIP) error: (?P<what>operation not permitted when stream is capturing|"
        r"operation failed due to a previous error during capture)",
        "this model cannot be captured in CUDA graphs: {what}",
        FailureClass.UNSUPPORTED_MODEL,
        cause="eager",
    ),
    row(
        "ptxas",
        r"ptxas fatal|`ptxas` failed",
        "the compiler of the kernels does not know this device (ptxas)",
        FailureClass.UNSUPPORTED_MODEL,
    ),
    row(
        "rror",
        r"Internal Triton PTX codegen error",
        "the compiler of the kernels does not know this device (ptxas)",
        FailureClass.UNSUPPORTED_MODEL,
    ),
    row(
        "cannot find -l",
        r"ld(?:\.\w+)?: (?P<what>cannot find -l\w+)",
        "the host cannot link what is compiled at the start: {what}",
        FailureClass.INFRA_FAULT,
        cause="host",
    ),
    row(
        "rror",
        r"fatal error: (?P<what>[^\s:]{1,200}): No such file",
        "the host lacks a header for what is compiled at the start: {what}",
        FailureClass.INFRA_FAULT,
        cause="host",
    ),
    row(
        "rror",
        r"(?P<what>Could not find nvcc|Failed to find C compiler|Ninja is required|"
        r"No such file or directory: '(?:[^' ]{0,200}/)?(?:nvcc|ninja|ptxas|gcc|cc|c\+\+)')",
        "the host lacks a compiler for what is compiled at the start: {what}",
        FailureClass.INFRA_FAULT,
        cause="host",
    ),
    row(
        "nvcc: not found",
        r"nvcc: not found",
        "the host lacks a compiler for what is compiled at the start: nvcc",
        FailureClass.INFRA_FAULT,
        cause="host",
    ),
    row(
        "corrupted compilation artifact",
        r"leading to a corrupted compilation artifact",
        "what an earlier start compiled and kept is damaged",
        FailureClass.INFRA_FAULT,
        cause="compile-cache",
    ),
    row(
        "rror",
        r"Cannot re-initialize CUDA in forked subprocess",
        "a worker was forked from a process that used the device already",
        FailureClass.INFRA_FAULT,
        cause="fork",
    ),
    row(
        "custom_all_reduce",
        r"Cuda error \S*custom_all_reduce\.cuh:\d+ '(?P<what>[^']{1,80})'",
        "vLLM's own all-reduce failed while {doing}: {what}",
        FailureClass.INFRA_FAULT,
        cause="all-reduce",
    ),
    # Last: it also passes on what the rows above know.
    row(
        ".exc.",
        r"(?P<what>torch\._(?:inductor|dynamo)\.exc\.\w+)",
        "torch could not compile the model ({what})",
        FailureClass.INFRA_FAULT,
        root=False,
        cause="eager",
    ),
)

# What the host does not allow, what its keepers say when they end vLLM for its memory, and what the ranks of two
# servers say of one port.
_HOST: tuple[Row, ...] = (
    row(
        "rror",
        r"getpwuid\(\): uid not found|No username set in the environment",
        "the user that vLLM runs as has no name here: set USER, or add the user",
        FailureClass.INFRA_FAULT,
        cause="host",
    ),
    row(
        "rrno ",
        r"\[Errno (?:30|122)\] (?P<what>Read-only file system|Disk quota exceeded)(?:: '(?P<file>[^']{1,300})')?",
        "vLLM cannot write[ {file}]: {what}",
        FailureClass.INFRA_FAULT,
        cause="host",
    ),
    row(
        "rror",
        r"can't start new thread",
        "the host or the container allows no more threads (its limit of processes)",
        FailureClass.INFRA_FAULT,
        cause="host",
    ),
    both(
        "systemd-oomd killed",
        r"systemd-oomd killed",
        "systemd ended vLLM for want of host memory while it was {doing}",
        FailureClass.HOST_OOM,
    ),
    both(
        "kill event",
        r"Detected \d+ oom[-_]kill event",
        "the kernel ended vLLM for want of host memory while it was {doing}",
        FailureClass.HOST_OOM,
    ),
    row(
        "EADDRINUSE",
        r"port: (?P<port>\d+), .*EADDRINUSE",
        "another program took the port {port} at which the ranks meet",
        FailureClass.INFRA_FAULT,
    ),
)

STARTS: tuple[Row, ...] = (*_ASKED, *_COMPILING, *_HOST)
