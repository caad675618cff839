"""The texts that decide: what vLLM, torch and their libraries print, what it means, and what is said of it.

Templates: vLLM 0.6 to 0.33 as read from its source, and the logs in tests/data/logs. A text for a new failure is a new
row here or in memory_texts.py, and nothing else. Groups of a pattern are numbers and words by their names (numbers.py).
"""

import re

from vllmd.decide.memory_texts import ALLOCATING, MEMORY_FACTS, PLANNING
from vllmd.decide.numbers import NUMBER
from vllmd.decide.text_row import Fact, Row, both, fact, row
from vllmd.model.failure import FailureClass

# What the operator asked for and cannot have. Nothing here heals by trying again.
_ASKING = (
    row(
        "max_",
        r"User-specified max_model_len \((?P<asked_tokens>\d+)\) is greater than the derived max_model_len "
        r"\(\w+=(?P<fitting_tokens>\d+)",
        "max-model-len {asked_tokens} is longer than the model allows: {fitting_tokens} at most",
        FailureClass.MODEL_LEN_TOO_LONG,
    ),
    both(
        "rrno 98]",
        r"\[[Ee]rrno 98\](?: error while attempting to bind on address \('[^']*', (?P<port>\d+))?",
        "port {port} is taken; free it, or choose another with --port",
        FailureClass.PORT_TAKEN,
    ),
    row(
        "rror",
        r"error: unrecognized arguments: (?P<arguments>.+)",
        "vLLM does not know {arguments}; remove it",
        FailureClass.UNKNOWN_FLAG,
    ),
    row(
        "rror",
        r"^\S.{0,40}: error: (?P<refusal>argument .+|ambiguous option: .+|the following arguments are required: .+)",
        "vLLM refuses its arguments: {refusal}",
        FailureClass.INVALID_FLAG,
    ),
    row(
        "max_",
        r"max_num_batched_tokens \((?P<batched_tokens>\d+)\) must be greater than or equal to max_num_seqs "
        r"\((?P<seqs>\d+)\)",
        "max-num-batched-tokens {batched_tokens} is below max-num-seqs {seqs}; raise the one or lower the other",
        FailureClass.INVALID_FLAG,
    ),
    row(
        "max_",
        r"max_num_batched_tokens \((?P<batched_tokens>\d+)\) is smaller than max_model_len \((?P<asked_tokens>\d+)\)",
        "max-num-batched-tokens {batched_tokens} is below max-model-len {asked_tokens}, and chunked prefill is off",
        FailureClass.INVALID_FLAG,
    ),
    row(
        "cannot be greater than",
        r"(?P<refusal>(?:max_num_active_seqs|long_prefill_token_threshold) \(\d+\) cannot be greater than .*?\(\d+\))",
        "vLLM refuses its arguments: {refusal}",
        FailureClass.INVALID_FLAG,
    ),
    row(
        "[type=",
        r"^\s*(?:Value error, |Assertion failed, )?(?P<refusal>\S.*?)\s*\[type=\w+, input_",
        "vLLM refuses its arguments: [{field}: ]{refusal}",
        FailureClass.INVALID_FLAG,
    ),
    row(
        "rror",
        r"ValueError: (?P<refusal>Total number of attention heads \(\d+\) must be divisible by .*|Bfloat16 is only "
        r"supported on .*|Model architectures .* are not supported.*)",
        "vLLM refuses its arguments: {refusal}",
        FailureClass.INVALID_FLAG,
    ),
)

# The model cannot be had.
_FINDING = (
    row(
        "Repo id must",
        r"Repo id must .*?: '(?P<model>[^']*)'",
        "no model at {model}",
        FailureClass.MODEL_NOT_FOUND,
    ),
    row(
        "Invalid repository ID or local directory",
        r"Invalid repository ID or local directory specified: '(?P<model>[^']*)'",
        "no model at {model}",
        FailureClass.MODEL_NOT_FOUND,
    ),
    row(
        "is not a valid model identifier",
        r"(?P<model>\S+) is not a local folder and is not a valid model identifier",
        "no model at {model}",
        FailureClass.MODEL_NOT_FOUND,
    ),
    row(
        "does not appear to have a file named",
        r"(?P<model>\S+) does not appear to have a file named (?P<file>\S+?)[.,]?(?:\s|$)",
        "no model at {model}: {file} is missing",
        FailureClass.MODEL_NOT_FOUND,
    ),
    row(
        "rror",
        r"GatedRepoError|40[13] Client Error",
        "the model hub refuses access[ to {model}]; set HF_TOKEN to a token that may read it",
        FailureClass.MODEL_NOT_FOUND,
    ),
    row(
        "rror",
        r"RepositoryNotFoundError|RevisionNotFoundError",
        "the model hub does not know the model[ {model}] or its revision",
        FailureClass.MODEL_NOT_FOUND,
    ),
    row(
        "outgoing traffic has been disabled",
        r"outgoing traffic has been disabled",
        "the model[ {model}] is not in the cache, and vLLM may not download it (offline mode)",
        FailureClass.MODEL_NOT_FOUND,
    ),
    row(
        "couldn't connect to",
        r"We couldn't connect to '[^']*'",
        "the model hub cannot be reached, and the model[ {model}] is not in the cache",
        FailureClass.UNKNOWN,
    ),
)

# Causes that no flag removes: the engine ended, or the start came at a bad moment. Trying again is all there is.
_BREAKING = (
    both(
        "rror",
        r"CUDA error: (?P<what>[\w -]{3,80})",
        "the GPU reported an error while {doing}: {what}",
        FailureClass.ENGINE_DIED,
    ),
    both(
        "collective operation timeout",
        r"Watchdog caught collective operation timeout",
        "the GPUs stopped answering each other while {doing} (NCCL watchdog)",
        FailureClass.ENGINE_DIED,
    ),
    both(
        "RPC call to",
        r"RPC call to (?P<method>\w+) timed out",
        "a worker did not answer {method} in time while {doing}",
        FailureClass.ENGINE_DIED,
    ),
    row(
        "emory",
        r"Error in memory profiling\. Initial free memory (?P<before>\S+) GiB, current free memory (?P<after>\S+) GiB",
        "free GPU memory went from {before} to {after} GiB while vLLM measured it: another process let go of some",
        FailureClass.UNKNOWN,
    ),
    row(
        "Timed out waiting for engine",
        r"Timed out waiting for engine",
        "the engine was not ready in the time that VLLM_ENGINE_READY_TIMEOUT_S allows",
        FailureClass.UNKNOWN,
    ),
)

# What follows from a cause. Without one in the log it is all that is known.
_FOLLOWING = (
    both(
        "orker proc",
        r"Worker proc (?P<who>\S+) died unexpectedly(?: \(exit code: (?P<code>-?\d+)\))?",
        "worker {who} died while {doing}[ (exit code {code})]",
        FailureClass.ENGINE_DIED,
        root=False,
    ),
    both(
        "ngine core",
        r"engine core exited unexpectedly|Engine core proc(?:ess)? \S+ died unexpectedly",
        "the engine died while {doing}, without a word why",
        FailureClass.ENGINE_DIED,
        root=False,
    ),
    row(
        "Failed core proc(s)",
        r"Failed core proc\(s\): \{.*?: (?P<code>-\d+)",
        "the engine was ended by a signal while {doing} (exit code {code})",
        FailureClass.ENGINE_DIED,
        root=False,
    ),
    both(
        "EngineCore encountered",
        r"EngineCore encountered (?:a fatal error|an issue)",
        "the engine died while {doing}",
        FailureClass.ENGINE_DIED,
        root=False,
    ),
    both(
        "MQLLMEngine is already dead",
        r"MQLLMEngine is already dead",
        "the engine died while {doing}",
        FailureClass.ENGINE_DIED,
        root=False,
    ),
    both(
        "fatal signal from worker",
        r"Got fatal signal from worker processes",
        "a worker died while {doing}",
        FailureClass.ENGINE_DIED,
        root=False,
    ),
    row(
        "KeyboardInterrupt",
        r"^KeyboardInterrupt: terminated",
        "somebody sent SIGTERM while vLLM was {doing}",
        FailureClass.KILLED,
        root=False,
    ),
)

# The first row of a line that matches is the one that counts.
ROWS: tuple[Row, ...] = (*PLANNING, *ALLOCATING, *_ASKING, *_FINDING, *_BREAKING, *_FOLLOWING)

FACTS: tuple[Fact, ...] = (
    fact("args: ", rf"['( ]gpu_memory_utilization'?[:=] ?(?P<utilization>{NUMBER})"),
    fact("args: ", r"['( ]port'?[:=] ?(?P<port>\d+)"),
    fact("args: ", r"['( ]model(?:_tag)?'?[:=] ?'(?P<model>[^']*)'"),
    fact("LLM engine (v", r"LLM engine \(v(?P<version>\d+\.\d+)"),
    fact("max_", r"max_num_batched_tokens=(?P<batched_tokens>\d+)"),
    *MEMORY_FACTS,
)

# The end of a traceback that no row knows.
ERROR_LINE = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Interrupt)(?::|$)")
ERROR_KEYS = ("rror", "Exception", "Interrupt")
# Ends of tracebacks that only pass on what happened elsewhere.
CASCADES = ("Engine core initialization failed", "EngineDeadError", "Engine process failed", ": cancelled")
# vLLM writes it every ten seconds while it works: what came before it did not end the server.
HEALTHY = "Avg prompt throughput"
