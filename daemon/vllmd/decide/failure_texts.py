"""The texts that decide: what vLLM, torch and their libraries print, what it means, and what is said of it.

Templates: vLLM 0.6 to 0.33 as read from its source, and the logs in tests/data/logs. A text for a new failure is a new
row here, and nothing else. Groups of a pattern are numbers and words by their names (decide/numbers.py).
"""

import re
from dataclasses import dataclass

from vllmd.decide.numbers import NUMBER, SIZE
from vllmd.model.failure import FailureClass


@dataclass(frozen=True, slots=True)
class Row:
    """One text: where it counts, what it means there, and the sentence for the operator.

    `key` stands in every line that `pattern` matches; it is looked for first, since that is fast, and the fewer
    different keys there are, the faster. `starting` and `serving` are the classes before and while serving; None: the
    text says nothing then. A `root` is a cause; what is none only follows from one, and counts where no root is found.
    In `summary`, {names} are the match's and the log's numbers and words, and a [part] is left out if one of its names
    is unknown.
    """

    key: str
    pattern: re.Pattern[str]
    summary: str
    starting: FailureClass | None = None
    serving: FailureClass | None = None
    root: bool = True


@dataclass(frozen=True, slots=True)
class Fact:
    """A line that is no failure, and whose numbers and words a remedy or a summary needs."""

    key: str
    pattern: re.Pattern[str]


def _row(
    key: str,
    pattern: str,
    summary: str,
    starting: FailureClass | None = None,
    serving: FailureClass | None = None,
    *,
    root: bool = True,
) -> Row:
    return Row(key, re.compile(pattern, re.ASCII), summary, starting, serving, root)


def _both(key: str, pattern: str, summary: str, kind: FailureClass, *, root: bool = True) -> Row:
    return _row(key, pattern, summary, kind, kind, root=root)


def _fact(key: str, pattern: str) -> Fact:
    return Fact(key, re.compile(pattern, re.ASCII))


_FREE_OF_TOTAL = rf"\((?P<free_gib>{NUMBER})/(?P<total_gib>{NUMBER}) GiB\)"

# Memory that the start plans with. The advice at the end of these texts is not followed: "No available memory" needs
# the utilization up, and so does a negative request on CPU, whose text asks to free memory instead.
_PLANNING = (
    _row(
        "emory",
        rf"Free memory on device (?:\S+ )?{_FREE_OF_TOTAL} on startup is less than "
        rf"[^(]*\((?P<utilization>{NUMBER}), (?P<requested_gib>{NUMBER}) GiB\)",
        "gpu-memory-utilization {utilization} asks for {requested}, but only {free} of {total} is free",
        FailureClass.UTILIZATION_TOO_HIGH,
    ),
    _row(
        "emory",
        rf"Available memory on node \d+ {_FREE_OF_TOTAL} on startup is less than "
        rf"desired CPU memory utilization \((?P<utilization>{NUMBER}), (?P<requested_gib>{NUMBER}) GiB\)",
        "gpu-memory-utilization {utilization} asks for {requested} of memory, but only {free} of {total} is free",
        FailureClass.UTILIZATION_TOO_HIGH,
    ),
    _row(
        "emory",
        rf"node \d+ {_FREE_OF_TOTAL} on kv cache allocation is less than requested memory for kv "
        rf"\((?P<available_gib>-{NUMBER}|0\.0+)/(?P<requested_gib>{NUMBER}) GiB\)",
        "gpu-memory-utilization leaves nothing for the KV pool: {available} of its {requested} remain",
        FailureClass.KV_POOL_TOO_SMALL,
    ),
    _row(
        "emory",
        rf"node \d+ {_FREE_OF_TOTAL} on kv cache allocation is less than requested memory for kv "
        rf"\((?P<requested_gib>{NUMBER})/{NUMBER} GiB\)",
        "the KV pool asks for {requested}, but only {free} of {total} is free",
        FailureClass.UTILIZATION_TOO_HIGH,
    ),
    _row(
        "emory",
        rf"node \d+ {_FREE_OF_TOTAL} on kv cache allocation is less than requested memory for kv "
        rf"\((?P<pool_gib>{NUMBER}) GiB\)",
        "the KV pool is set to {pool}, but only {free} of {total} is free",
        FailureClass.UTILIZATION_TOO_HIGH,
    ),
    _row(
        "emory",
        r"(?<!\(\")No available memory for the cache blocks",
        "no memory left for the KV pool[ at gpu-memory-utilization {utilization}][: {available} remain]",
        FailureClass.KV_POOL_TOO_SMALL,
    ),
    _row(
        "KV cache",
        r"To serve at least one request with the \S+ max seq len \((?P<asked_tokens>\d+)\), "
        rf"\(?(?P<needed_gib>{NUMBER}) GiB KV cache is needed, which is larger than the available KV cache memory "
        rf"\((?P<available_gib>{NUMBER}) GiB\)(?:.*?estimated maximum model length is (?P<fitting_tokens>\d+))?",
        "KV pool too small for one request of {asked_tokens} tokens: needs {needed}, has {available}",
        FailureClass.KV_POOL_TOO_SMALL,
    ),
    _row(
        "KV cache",
        r"max seq len \((?P<asked_tokens>\d+)\) is larger than the maximum number of tokens that can be stored in KV "
        r"cache \((?P<fitting_tokens>\d+)\)",
        "KV pool too small for one request of {asked_tokens} tokens: holds {fitting_tokens}",
        FailureClass.KV_POOL_TOO_SMALL,
    ),
    _row(
        "max_",
        r"Cannot auto-fit max_model_len: not enough GPU memory",
        "KV pool too small for a single token[ at gpu-memory-utilization {utilization}][: {available} remain]",
        FailureClass.KV_POOL_TOO_SMALL,
    ),
)

# Allocations that failed. torch prints the numbers; vLLM's own lines beside it say what was being done.
_ALLOCATING = (
    _row(
        "emory",
        rf"(?:CUDA|HIP) out of memory\.(?: Tried to allocate (?P<tried_size>{SIZE})\.)?"
        rf"(?: GPU \d+ has a total capacity of (?P<total_size>{SIZE}) of which (?P<free_size>{SIZE}) is free\.)?"
        rf"(?:.*? and (?P<reserved_size>{SIZE}) is reserved by PyTorch)?",
        "out of GPU memory while {doing}[: tried to allocate {tried}][, {free} of {total} free]",
        FailureClass.START_OOM,
        FailureClass.RUNTIME_OOM,
    ),
    _row(
        "emory",
        r"CUDA out of memory occurred when warming up (?P<what>sampler|pooler).*?with (?P<dummy_requests>\d+) dummy",
        "out of GPU memory while warming up the {what} with {dummy_requests} requests",
        FailureClass.START_OOM,
    ),
    _row(
        "emory",
        r"CUDA error: out of memory",
        "out of GPU memory while {doing}",
        FailureClass.START_OOM,
        FailureClass.RUNTIME_OOM,
    ),
    _row(
        "emory",
        r"Failed to load model - not enough GPU memory",
        "out of GPU memory while loading the weights",
        FailureClass.START_OOM,
    ),
)

# What the operator asked for and cannot have. Nothing here heals by trying again.
_ASKING = (
    _row(
        "max_",
        r"User-specified max_model_len \((?P<asked_tokens>\d+)\) is greater than the derived max_model_len "
        r"\(\w+=(?P<fitting_tokens>\d+)",
        "max-model-len {asked_tokens} is longer than the model allows: {fitting_tokens} at most",
        FailureClass.MODEL_LEN_TOO_LONG,
    ),
    _both(
        "rrno 98]",
        r"\[[Ee]rrno 98\](?: error while attempting to bind on address \('[^']*', (?P<port>\d+))?",
        "port {port} is taken; free it, or choose another with --port",
        FailureClass.PORT_TAKEN,
    ),
    _row(
        "rror",
        r"error: unrecognized arguments: (?P<arguments>.+)",
        "vLLM does not know {arguments}; remove it",
        FailureClass.UNKNOWN_FLAG,
    ),
    _row(
        "rror",
        r"^\S.{0,40}: error: (?P<refusal>argument .+|ambiguous option: .+|the following arguments are required: .+)",
        "vLLM refuses its arguments: {refusal}",
        FailureClass.INVALID_FLAG,
    ),
    _row(
        "max_",
        r"max_num_batched_tokens \((?P<batched_tokens>\d+)\) must be greater than or equal to max_num_seqs "
        r"\((?P<seqs>\d+)\)",
        "max-num-batched-tokens {batched_tokens} is below max-num-seqs {seqs}; raise the one or lower the other",
        FailureClass.INVALID_FLAG,
    ),
    _row(
        "max_",
        r"max_num_batched_tokens \((?P<batched_tokens>\d+)\) is smaller than max_model_len \((?P<asked_tokens>\d+)\)",
        "max-num-batched-tokens {batched_tokens} is below max-model-len {asked_tokens}, and chunked prefill is off",
        FailureClass.INVALID_FLAG,
    ),
    _row(
        "cannot be greater than",
        r"(?P<refusal>(?:max_num_active_seqs|long_prefill_token_threshold) \(\d+\) cannot be greater than .*?\(\d+\))",
        "vLLM refuses its arguments: {refusal}",
        FailureClass.INVALID_FLAG,
    ),
    _row(
        "[type=",
        r"^\s*(?:Value error, |Assertion failed, )?(?P<refusal>\S.*?)\s*\[type=\w+, input_",
        "vLLM refuses its arguments: [{field}: ]{refusal}",
        FailureClass.INVALID_FLAG,
    ),
    _row(
        "rror",
        r"ValueError: (?P<refusal>Total number of attention heads \(\d+\) must be divisible by .*|Bfloat16 is only "
        r"supported on .*|Model architectures .* are not supported.*)",
        "vLLM refuses its arguments: {refusal}",
        FailureClass.INVALID_FLAG,
    ),
)

# The model cannot be had.
_FINDING = (
    _row(
        "Repo id must",
        r"Repo id must .*?: '(?P<model>[^']*)'",
        "no model at {model}",
        FailureClass.MODEL_NOT_FOUND,
    ),
    _row(
        "Invalid repository ID or local directory",
        r"Invalid repository ID or local directory specified: '(?P<model>[^']*)'",
        "no model at {model}",
        FailureClass.MODEL_NOT_FOUND,
    ),
    _row(
        "is not a valid model identifier",
        r"(?P<model>\S+) is not a local folder and is not a valid model identifier",
        "no model at {model}",
        FailureClass.MODEL_NOT_FOUND,
    ),
    _row(
        "does not appear to have a file named",
        r"(?P<model>\S+) does not appear to have a file named (?P<file>\S+?)[.,]?(?:\s|$)",
        "no model at {model}: {file} is missing",
        FailureClass.MODEL_NOT_FOUND,
    ),
    _row(
        "rror",
        r"GatedRepoError|40[13] Client Error",
        "the model hub refuses access[ to {model}]; set HF_TOKEN to a token that may read it",
        FailureClass.MODEL_NOT_FOUND,
    ),
    _row(
        "rror",
        r"RepositoryNotFoundError|RevisionNotFoundError",
        "the model hub does not know the model[ {model}] or its revision",
        FailureClass.MODEL_NOT_FOUND,
    ),
    _row(
        "outgoing traffic has been disabled",
        r"outgoing traffic has been disabled",
        "the model[ {model}] is not in the cache, and vLLM may not download it (offline mode)",
        FailureClass.MODEL_NOT_FOUND,
    ),
    _row(
        "couldn't connect to",
        r"We couldn't connect to '[^']*'",
        "the model hub cannot be reached, and the model[ {model}] is not in the cache",
        FailureClass.UNKNOWN,
    ),
)

# Causes that no flag removes: the engine ended, or the start came at a bad moment. Trying again is all there is.
_BREAKING = (
    _both(
        "rror",
        r"CUDA error: (?P<what>[\w -]{3,80})",
        "the GPU reported an error while {doing}: {what}",
        FailureClass.ENGINE_DIED,
    ),
    _both(
        "collective operation timeout",
        r"Watchdog caught collective operation timeout",
        "the GPUs stopped answering each other while {doing} (NCCL watchdog)",
        FailureClass.ENGINE_DIED,
    ),
    _both(
        "RPC call to",
        r"RPC call to (?P<method>\w+) timed out",
        "a worker did not answer {method} in time while {doing}",
        FailureClass.ENGINE_DIED,
    ),
    _row(
        "emory",
        r"Error in memory profiling\. Initial free memory (?P<before>\S+) GiB, current free memory (?P<after>\S+) GiB",
        "free GPU memory went from {before} to {after} GiB while vLLM measured it: another process let go of some",
        FailureClass.UNKNOWN,
    ),
    _row(
        "Timed out waiting for engine",
        r"Timed out waiting for engine",
        "the engine was not ready in the time that VLLM_ENGINE_READY_TIMEOUT_S allows",
        FailureClass.UNKNOWN,
    ),
)

# What follows from a cause. Without one in the log it is all that is known.
_FOLLOWING = (
    _both(
        "orker proc",
        r"Worker proc (?P<who>\S+) died unexpectedly(?: \(exit code: (?P<code>-?\d+)\))?",
        "worker {who} died while {doing}[ (exit code {code})]",
        FailureClass.ENGINE_DIED,
        root=False,
    ),
    _both(
        "ngine core",
        r"engine core exited unexpectedly|Engine core proc(?:ess)? \S+ died unexpectedly",
        "the engine died while {doing}, without a word why",
        FailureClass.ENGINE_DIED,
        root=False,
    ),
    _row(
        "Failed core proc(s)",
        r"Failed core proc\(s\): \{.*?: (?P<code>-\d+)",
        "the engine was ended by a signal while {doing} (exit code {code})",
        FailureClass.ENGINE_DIED,
        root=False,
    ),
    _both(
        "EngineCore encountered",
        r"EngineCore encountered (?:a fatal error|an issue)",
        "the engine died while {doing}",
        FailureClass.ENGINE_DIED,
        root=False,
    ),
    _both(
        "MQLLMEngine is already dead",
        r"MQLLMEngine is already dead",
        "the engine died while {doing}",
        FailureClass.ENGINE_DIED,
        root=False,
    ),
    _both(
        "fatal signal from worker",
        r"Got fatal signal from worker processes",
        "a worker died while {doing}",
        FailureClass.ENGINE_DIED,
        root=False,
    ),
    _row(
        "KeyboardInterrupt",
        r"^KeyboardInterrupt: terminated",
        "somebody sent SIGTERM while vLLM was {doing}",
        FailureClass.KILLED,
        root=False,
    ),
)

# The first row of a line that matches is the one that counts.
ROWS: tuple[Row, ...] = (*_PLANNING, *_ALLOCATING, *_ASKING, *_FINDING, *_BREAKING, *_FOLLOWING)

FACTS: tuple[Fact, ...] = (
    _fact("args: ", rf"['( ]gpu_memory_utilization'?[:=] ?(?P<utilization>{NUMBER})"),
    _fact("args: ", r"['( ]port'?[:=] ?(?P<port>\d+)"),
    _fact("args: ", r"['( ]model(?:_tag)?'?[:=] ?'(?P<model>[^']*)'"),
    _fact("LLM engine (v", r"LLM engine \(v(?P<version>\d+\.\d+)"),
    _fact("max_", r"max_num_batched_tokens=(?P<batched_tokens>\d+)"),
    _fact("took", rf"(?:Model loading|Loading model weights) took (?P<weights_gib>{NUMBER}) G"),
    _fact("emory", rf"Available KV cache memory: (?P<available_gib>{NUMBER}) GiB"),
    _fact("KV cache", rf"Explicitly set \((?P<pool_gib>{NUMBER})/(?P<total_gib>{NUMBER})\) GiB"),
    _fact("KV cache", rf"Auto set \((?P<available_gib>{NUMBER})/(?P<total_gib>{NUMBER})\) GiB"),
    _fact(
        "emory",
        rf"Free memory on device \({NUMBER}/(?P<total_gib>{NUMBER}) GiB\) on startup\. "
        rf"Desired GPU memory utilization is \((?P<utilization>{NUMBER}), ",
    ),
    _fact(
        "emory",
        rf"total_gpu_memory \((?P<total_gib>{NUMBER})GiB\) x gpu_memory_utilization \((?P<utilization>{NUMBER})\)",
    ),
    _fact("reserved for KV Cache", rf"reserved for KV Cache is (?P<available_gib>{NUMBER})GiB"),
    _fact(
        "emory",
        rf"total_gpu_memory=(?P<total_gib>{NUMBER})GiB.*kv_cache_size=(?P<available_gib>{NUMBER})GiB",
    ),
)

# The end of a traceback that no row knows.
ERROR_LINE = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Interrupt)(?::|$)")
ERROR_KEYS = ("rror", "Exception", "Interrupt")
# Ends of tracebacks that only pass on what happened elsewhere.
CASCADES = ("Engine core initialization failed", "EngineDeadError", "Engine process failed", ": cancelled")
# vLLM writes it every ten seconds while it works: what came before it did not end the server.
HEALTHY = "Avg prompt throughput"
