"""The texts about what the operator asked for and cannot have: arguments, the model, the port. Trying again heals none.

Templates: vLLM 0.5 to 0.33 as read from its source, transformers, huggingface_hub and argparse.
"""

from vllmd.decide.text_row import Row, both, row
from vllmd.model.failure import FailureClass

ARGUMENTS: tuple[Row, ...] = (
    row(
        "max_",
        r"User-specified max_model_len \((?P<asked_tokens>\d+)\) is greater than the derived max_model_len "
        r"\(\w+=(?P<fitting_tokens>\d+)",
        "max-model-len {asked_tokens} is longer than the model allows: {fitting_tokens} at most",
        FailureClass.INVALID_COMBINATION,
        cause="beyond-the-model",
    ),
    row(
        "rror",
        r"error: unrecognized arguments: (?P<arguments>.+)",
        "vLLM does not know {arguments}; remove it",
        FailureClass.INVALID_FLAG,
        cause="unknown",
    ),
    row(
        "rror",
        r"(?:^|\s)[\w./-]+: error: "
        r"(?P<refusal>(?:argument (?P<argument>-[^:]+): |ambiguous option: (?P<ambiguous>\S+) ).+)",
        "vLLM refuses its arguments: {refusal}",
        FailureClass.INVALID_FLAG,
        cause="value",
    ),
    row(
        "rror",
        r"(?:^|\s)[\w./-]+: error: (?P<refusal>(?:the following arguments are required|argument ).+)",
        "vLLM refuses its arguments: {refusal}",
        FailureClass.INVALID_FLAG,
    ),
    row(
        "max_",
        r"max_num_batched_tokens \((?P<batched_tokens>\d+)\) must be greater than or equal to max_num_seqs "
        r"\((?P<seqs>\d+)\)",
        "max-num-batched-tokens {batched_tokens} is below max-num-seqs {seqs}; raise the one or lower the other",
        FailureClass.INVALID_COMBINATION,
        cause="batched-below-seqs",
    ),
    row(
        "max_",
        r"max_num_batched_tokens \((?P<batched_tokens>\d+)\) is smaller than max_model_len \((?P<asked_tokens>\d+)\)",
        "max-num-batched-tokens {batched_tokens} is below max-model-len {asked_tokens}, and chunked prefill is off",
        FailureClass.INVALID_COMBINATION,
        cause="batched-below-length",
    ),
    row(
        "rror",
        r"(?P<refusal>(?P<argument>max_num_active_seqs|long_prefill_token_threshold) \(\d+\) cannot be greater than "
        r".*?\((?P<limit_tokens>\d+)\))",
        "vLLM refuses its arguments: {refusal}",
        FailureClass.INVALID_COMBINATION,
        cause="above-limit",
    ),
    row(
        "max_",
        r"(?P<refusal>(?P<argument>max_num_seqs) \(\d+\) exceeds available Mamba cache blocks "
        r"\((?P<limit_tokens>\d+)\))",
        "vLLM refuses its arguments: {refusal}",
        FailureClass.INVALID_COMBINATION,
        cause="above-limit",
    ),
    row(
        "max_",
        r"(?P<refusal>LoRA rank (?P<rank_tokens>\d+) is greater than max_lora_rank \d+)",
        "vLLM refuses its arguments: {refusal}",
        FailureClass.INVALID_COMBINATION,
        cause="lora-rank",
    ),
    row(
        "rror",
        r"(?P<refusal>(?:Total n|N)umber of attention heads \((?P<heads>\d+)\) must be divisible by tensor parallel "
        r"size \((?P<ranks>\d+)\))",
        "vLLM refuses its arguments: {refusal}",
        FailureClass.INVALID_COMBINATION,
        cause="heads",
    ),
    row(
        "rror",
        r"(?P<refusal>(?:[Ww]orld size|Tensor parallel size|tensor_parallel_size) \(?(?P<ranks>\d+)\)? "
        r".{0,40}larger than the number of available (?:GPUs|devices|XPUs)(?: \((?P<devices>\d+)\))?|"
        r"number of required GPUs exceeds the total number of available GPUs)",
        "vLLM refuses its arguments: {refusal}",
        FailureClass.INVALID_COMBINATION,
        cause="devices",
    ),
    row(
        "rror",
        r"(?P<argument>GPU memory utilization) must be less than 1\.0\. Got (?P<given>[\d.]+)\.",
        "gpu-memory-utilization {given} is no part of the device: it goes from 0 to 1",
        FailureClass.INVALID_FLAG,
        cause="value",
    ),
    row(
        "rror",
        r"(?P<refusal>max_num_scheduled_tokens is set to .*|[Cc]onsider increasing max_num_batched_tokens or "
        r"decreasing num_speculative_tokens.*)",
        "vLLM refuses its arguments: {refusal}",
        FailureClass.INVALID_COMBINATION,
    ),
    row(
        "[type=",
        r"Value error, (?P<refusal>\S.{0,500}?) ?\[type=\w+, input_",
        "vLLM refuses its arguments: [{field}: ]{refusal}",
        FailureClass.INVALID_COMBINATION,
    ),
    row(
        "[type=",
        r"^\s*(?:Assertion failed, )?(?P<refusal>\S.{0,500}?) ?\[type=\w+, input_",
        "vLLM refuses its arguments: [{field}: ]{refusal}",
        FailureClass.INVALID_FLAG,
        cause="value",
    ),
    row(
        "rror",
        r"(?:ValueError|NotImplementedError|AssertionError): "
        r"(?P<refusal>.{3,160}?(?:not supported (?:with|when|together)|"
        r"(?:not |in)compatible with|cannot be used (?:with|together|when)|mutually exclusive|does not support (?:lora|"
        r"pipeline|speculative|chunked|prefix)).*)",
        "vLLM refuses its arguments: {refusal}",
        FailureClass.INVALID_COMBINATION,
    ),
    both(
        "rrno 98]",
        r"\[[Ee]rrno 98\](?: error while attempting to bind on address \('[^']*', (?P<port>\d+))?",
        "port {port} is taken; free it, or choose another with --port",
        FailureClass.PORT_IN_USE,
    ),
)

MODEL: tuple[Row, ...] = (
    row(
        "rror",
        r"(?P<refusal>Bfloat16 is only supported on (?:GPUs|devices) with compute capability of at least [\d.]+\."
        r"(?: Your.*? has compute capability [\d.]+)?)",
        "the model's type does not run here: {refusal}",
        FailureClass.UNSUPPORTED_MODEL,
        cause="bfloat16",
    ),
    row(
        "rror",
        r"(?P<refusal>Model architectures? .{1,120}?(?:are|is) not supported|The checkpoint you are trying to load has "
        r"model type \S+ but Transformers does not recognize this architecture|Cannot find model module|"
        r"No model architectures are specified|[Tt]he quantization method \S+ is not supported for the current GPU|"
        r"(?:Unknown|Unsupported) quantization method|type fp8e4nv not supported in this architecture|"
        r"data type is not supported on CUDA arch|"
        r"FlashAttention only supports Ampere|Quantization scheme is not supported for the current GPU)",
        "vLLM cannot run this model here: {refusal}",
        FailureClass.UNSUPPORTED_MODEL,
    ),
    row(
        "trust_remote_code",
        r"requires you to execute .*trust_remote_code|Please pass the argument `trust_remote_code=True`|"
        r"set the option `trust_remote_code=True`",
        "the model brings code of its own, which runs only with --trust-remote-code; that is the operator's to decide",
        FailureClass.UNSUPPORTED_MODEL,
    ),
    row("rror", r"Repo id must .*?: '(?P<model>[^']*)'", "no model at {model}", FailureClass.MODEL_ACCESS),
    row(
        "rror",
        r"Invalid repository ID or local directory specified: '(?P<model>[^']*)'",
        "no model at {model}",
        FailureClass.MODEL_ACCESS,
    ),
    row(
        "rror",
        r"(?:^|\s)(?P<model>\S+) is not a local folder and is not a valid model identifier",
        "no model at {model}",
        FailureClass.MODEL_ACCESS,
    ),
    row(
        "rror",
        r"(?:^|\s)(?P<model>\S+) does not appear to have a file named (?P<file>\S+?)[.,]?(?:\s|$)",
        "no model at {model}: {file} is missing",
        FailureClass.MODEL_ACCESS,
    ),
    row(
        "rror",
        r"[Cc]annot find any model weights with [`']?(?P<model>[^`'\s]+)",
        "no weights at {model}",
        FailureClass.MODEL_ACCESS,
    ),
    row(
        "rror",
        r"Can't load (?P<what>tokenizer|the configuration|the model|image processor|feature extractor) (?:for|of) "
        r"'(?P<model>[^']+)'",
        "no model at {model}: {what} cannot be loaded",
        FailureClass.MODEL_ACCESS,
    ),
    row(
        "rror",
        r"SafetensorError: (?P<refusal>.+)",
        "a file of the weights is damaged or cut short: {refusal}",
        FailureClass.MODEL_ACCESS,
    ),
    row(
        "rror",
        r"GatedRepoError|40[13] Client Error|trying to access a gated repo",
        "the model hub refuses access[ to {model}]; set HF_TOKEN to a token that may read it",
        FailureClass.MODEL_ACCESS,
    ),
    row(
        "rror",
        r"RepositoryNotFoundError|RevisionNotFoundError|404 Client Error",
        "the model hub does not know the model[ {model}] or its revision",
        FailureClass.MODEL_ACCESS,
    ),
    row(
        "rror",
        r"LocalEntryNotFoundError: (?:An error happened|.*check your connection)",
        "the model[ {model}] is not in the cache, and the model hub does not answer",
        FailureClass.MODEL_ACCESS,
        cause="hub-silent",
    ),
    row(
        "rror",
        r"LocalEntryNotFoundError|OfflineModeIsEnabled",
        "the model[ {model}] is not in the cache, and the model hub may not be asked",
        FailureClass.MODEL_ACCESS,
    ),
    row(
        "outgoing traffic has been disabled",
        r"outgoing traffic has been disabled",
        "the model[ {model}] is not in the cache, and vLLM may not download it (offline mode)",
        FailureClass.MODEL_ACCESS,
    ),
    row(
        "rror",
        r"NameResolutionError|Temporary failure in name resolution|5\d\d Server Error|429 Client Error|"
        r"Read timed out|ConnectTimeout|ReadTimeout|NewConnectionError",
        "the model hub does not answer",
        FailureClass.MODEL_ACCESS,
        cause="hub-silent",
    ),
    row(
        "rror",
        r"We couldn't connect to '[^']*'",
        "the model hub cannot be reached, and the model[ {model}] is not in the cache",
        FailureClass.MODEL_ACCESS,
        cause="hub-silent",
    ),
    row(
        "rror",
        r"PermissionError: \[Errno 13\] Permission denied: '(?P<file>[^']+)'",
        "vLLM may not read or write {file}",
        FailureClass.MODEL_ACCESS,
    ),
)
