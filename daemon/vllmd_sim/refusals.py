"""What the API server refuses before there is an engine: the port, the arguments, the model, a host without a GPU.

Templates: vLLM 0.26 to 0.33, huggingface_hub and transformers. Every refusal ends the server with code 1.
"""

from vllmd_sim.failures import API_WORKER, CLI, ConfigError, Frame

_CONFIGURING = (
    *CLI,
    *API_WORKER,
    Frame("vllm/engine/arg_utils.py", 2181, "create_engine_config", "self.create_model_config()"),
    Frame("pydantic/_internal/_dataclasses.py", 121, "__init__", "s.__pydantic_validator__.validate_python("),
)
_HUB = "https://huggingface.co"


def bind_failed(error: OSError) -> ConfigError:
    """Say that the port cannot be had; errno 98 when it belongs to somebody else."""
    frames = (
        Frame("vllm/entrypoints/openai/api_server.py", 757, "run_server", "listen_address, sock = setup_server(args)"),
        Frame("vllm/entrypoints/openai/api_server.py", 700, "create_server_socket", "sock.bind(addr)"),
    )
    return ConfigError(f"{type(error).__name__}: [Errno {error.errno}] {error.strerror}", *CLI, *frames)


def model_not_found(model: str) -> ConfigError:
    """Say that a path does not exist, as if it were the name of a repository (seen with 0.32)."""
    text = (
        "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': "
        f"'{model}'. Use `repo_type` argument if needed."
    )
    frame = Frame("huggingface_hub/utils/_validators.py", 133, "validate_repo_id", "raise HFValidationError(")
    return ConfigError(text, *CLI, *API_WORKER, frame)


def model_gated(model: str) -> ConfigError:
    """Say that the hub gives this model to some accounts only."""
    return _hub(
        "huggingface_hub.errors.GatedRepoError: 401 Client Error. (Request ID: Root=1-0000)\n\n"
        f"Cannot access gated repo for url {_HUB}/{model}/resolve/main/config.json.\n"
        f"Access to model {model} is restricted. You must have access to it and be authenticated to access it. Please "
        "log in.\n\nThe above exception was the direct cause of the following exception:\n\n"
        f"OSError: You are trying to access a gated repo.\nMake sure to have access to it at {_HUB}/{model}."
    )


def model_unknown(model: str) -> ConfigError:
    """Say that the hub has no such model."""
    return _hub(
        "huggingface_hub.errors.RepositoryNotFoundError: 404 Client Error. (Request ID: Root=1-0000)\n\n"
        f"Repository Not Found for url: {_HUB}/{model}/resolve/main/config.json.\n"
        "Please make sure you specified the correct `repo_id` and `repo_type`.\n\n"
        "The above exception was the direct cause of the following exception:\n\n"
        f"OSError: {model} is not a local folder and is not a valid model identifier listed on '{_HUB}/models'"
    )


def model_not_cached(model: str) -> ConfigError:
    """Say that the model would have to be downloaded, and that this is switched off."""
    del model  # huggingface_hub does not name it
    return _hub(
        "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find an appropriate cached snapshot folder for the "
        "specified revision on the local disk and outgoing traffic has been disabled. To enable repo look-ups and "
        "downloads online, pass 'local_files_only=False' as input."
    )


def hub_silent(model: str) -> ConfigError:
    """Say that the hub cannot be reached."""
    del model  # transformers does not name it
    return _hub(
        f"OSError: We couldn't connect to '{_HUB}' to load the files, and couldn't find them in the cached files.\n"
        "Check your internet connection or see how to run the library in offline mode."
    )


def model_without_config(model: str) -> ConfigError:
    """Say that a folder or repository holds no configuration (transformers_utils/config.py)."""
    text = (
        f"ValueError: Invalid repository ID or local directory specified: '{model}'.\n"
        "Please verify the following requirements:\n"
        "1. Provide a valid Hugging Face repository ID.\n"
        "2. Specify a local directory that contains a recognized configuration file."
    )
    frame = Frame("vllm/transformers_utils/config.py", 912, "get_config", "raise ValueError(error_message) from e")
    return ConfigError(text, *_CONFIGURING, frame)


def architecture_unsupported(model: str) -> ConfigError:
    """Say that this vLLM does not know the model's architecture (model_executor/models/registry.py)."""
    del model  # vLLM names the architecture alone
    text = (
        "Model architectures ['UnheardOfForCausalLM'] are not supported for now. Supported architectures: "
        "dict_keys(['LlamaForCausalLM', 'Qwen3ForCausalLM'])"
    )
    return _validation("ModelConfig", text)


def no_device() -> ConfigError:
    """Say that there is no GPU at all (config/device.py)."""
    text = (
        "RuntimeError: Failed to infer device type, please set the environment variable `VLLM_LOGGING_LEVEL=DEBUG` to "
        "turn on verbose logging to help debug the issue."
    )
    frame = Frame("vllm/config/device.py", 61, "__post_init__", "raise RuntimeError(")
    return ConfigError(text, *CLI, *API_WORKER, frame)


def too_few_devices(ranks: int, devices: int) -> ConfigError:
    """Say that the model is to be spread over more GPUs than there are (config/parallel.py)."""
    text = (
        f"World size ({ranks}) is larger than the number of available GPUs ({devices}) in this node. If this is "
        "intentional and you are using:\n- ray, set '--distributed-executor-backend ray'.\n- multiprocessing, set "
        "'--nnodes' appropriately."
    )
    return _validation("ParallelConfig", text)


def heads_indivisible(heads: int, ranks: int) -> ConfigError:
    """Say that the attention heads cannot be dealt out evenly (config/model.py)."""
    text = f"Total number of attention heads ({heads}) must be divisible by tensor parallel size ({ranks})."
    return _validation("VllmConfig", text)


def model_len_too_long(asked: int, limit: int) -> ConfigError:
    """Say that the context length is beyond what the model was made for (seen with 0.32)."""
    text = (
        f"User-specified max_model_len ({asked}) is greater than the derived max_model_len (max_position_embeddings="
        f"{float(limit)} or model_max_length=None in model's config.json). To allow overriding this maximum, set the "
        "env var VLLM_ALLOW_LONG_MAX_MODEL_LEN=1."
    )
    return _validation("ModelConfig", text)


def batched_below_seqs(batched: int, seqs: int) -> ConfigError:
    """Say that there are fewer batched tokens than sequences."""
    text = f"max_num_batched_tokens ({batched}) must be greater than or equal to max_num_seqs ({seqs})."
    return _validation("SchedulerConfig", text)


def batched_below_length(batched: int, length: int) -> ConfigError:
    """Say that without chunked prefill a whole prompt must fit into one step (config/scheduler.py)."""
    text = (
        f"max_num_batched_tokens ({batched}) is smaller than max_model_len ({length}). This effectively limits the "
        "maximum sequence length to max_num_batched_tokens and makes vLLM reject longer sequences. Please increase "
        "max_num_batched_tokens or decrease max_model_len."
    )
    return _validation("SchedulerConfig", text)


def active_above_seqs(active: int, seqs: int) -> ConfigError:
    """Say that more sequences are to run than there may be (config/scheduler.py, 0.31 and later)."""
    return _validation(
        "SchedulerConfig", f"max_num_active_seqs ({active}) cannot be greater than max_num_seqs ({seqs})."
    )


def threshold_above_length(threshold: int, length: int) -> ConfigError:
    """Say that a prompt counts as long only beyond the longest one (config/scheduler.py)."""
    text = f"long_prefill_token_threshold ({threshold}) cannot be greater than the max_model_len ({length})."
    return _validation("SchedulerConfig", text)


def utilization_out_of_range(utilization: float) -> ConfigError:
    """Say that a utilization is no part of the device (pydantic's words for config/cache.py's bounds)."""
    bound, kind = (
        ("less than or equal to 1", "less_than_equal") if utilization > 1 else ("greater than 0", "greater_than")
    )
    return ConfigError(
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for CacheConfig\n"
        "gpu_memory_utilization\n"
        f"  Input should be {bound} [type={kind}, input_value={utilization}, input_type=float]\n"
        f"    For further information visit https://errors.pydantic.dev/2.14/v/{kind}",
        *_CONFIGURING,
    )


def _hub(text: str) -> ConfigError:
    frame = Frame("vllm/transformers_utils/repo_utils.py", 301, "get_model_path", "return hf_api().snapshot_download(")
    return ConfigError(text, *CLI, *API_WORKER, frame)


def _validation(model: str, text: str) -> ConfigError:
    details = "[type=value_error, input_value=ArgsKwargs((), {...}), input_type=ArgsKwargs]"
    return ConfigError(
        f"pydantic_core._pydantic_core.ValidationError: 1 validation error for {model}\n"
        f"  Value error, {text} {details}\n"
        "    For further information visit https://errors.pydantic.dev/2.14/v/value_error",
        *_CONFIGURING,
    )
