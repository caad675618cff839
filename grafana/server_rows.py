"""The rows of what the server itself does: restarts as clients see them, live values, and its load."""  # noqa: INP001

from panels import OURS, THEIRS, Json, dashed, lines, panel, query


def restarts() -> list[Json]:
    """Return what restarts meant for clients."""
    kinds = f"sum by (name, kind) (increase(vllmd_restarts_total{{{OURS}}}[$__rate_interval]))"
    sums = {"connections_held": "waited", "requests_refused": "refused with 503", "requests_cut": "cut"}
    met = [
        query(f"increase(vllmd_{m}_total{{{OURS}}}[$__rate_interval])", f"{{{{name}}}} {t}") for m, t in sums.items()
    ]
    return [
        panel(
            "timeseries",
            "Restarts by kind",
            "Gated and planned: connections waited. Plain: they were refused. Crashes are not among them.",
            (8, 7),
            [query(kinds, "{{name}} {{kind}}")],
            lines("none", stacked=True, bars=True),
        ),
        panel(
            "timeseries",
            "What restarts meant for clients",
            "Connections that waited for the next server, requests refused with 503, and cut, as far as known.",
            (8, 7),
            met,
            lines("none", bars=True),
        ),
        panel(
            "timeseries",
            "The last restart",
            "No connection waited longer; the most that waited at once. Nothing before the first planned restart.",
            (8, 7),
            [
                query(f"vllmd_restart_longest_wait_seconds{{{OURS}}}", "{{name}} longest wait, s"),
                query(f"vllmd_restart_held_connections{{{OURS}}}", "{{name}} at once"),
            ],
            lines("none", step=True),
        ),
    ]


def live() -> list[Json]:
    """Return the live values, the engine's steps and the requests in flight, as vllmd_shim tells them."""
    overhead = f"vllmd_shim_overhead_seconds_total{{{OURS}}} / (vllmd_engine_steps_total{{{OURS}}} > 0)"
    return [
        panel(
            "timeseries",
            "Live values",
            "What can be changed in the running server: as launched (dashed), as asked for, and in force.",
            (8, 7),
            [query(f"vllmd_live_value{{{OURS}}}", "{{name}} {{flag}} {{kind}}")],
            lines("none", log=True, step=True),
            overrides=dashed("launched"),
        ),
        panel(
            "timeseries",
            "Steps of the engine, and requests in flight",
            "Counted inside the server.",
            (8, 7),
            [
                query(f"rate(vllmd_engine_steps_total{{{OURS}}}[$__rate_interval])", "{{name}} steps a second"),
                query(f"vllmd_requests_in_flight{{{OURS}}}", "{{name}} in flight"),
            ],
            lines("none"),
        ),
        panel(
            "timeseries",
            "What vllmd_shim takes of a step",
            "The mean of all steps of the launch.",
            (8, 7),
            [query(overhead, "{{name}}")],
            lines("s"),
        ),
    ]


def load() -> list[Json]:
    """Return what is asked of the server, from its own metrics."""
    generated = f"sum by (job) (rate(vllm:generation_tokens_total{{{THEIRS}}}[$__rate_interval]))"
    prompts = f"sum by (job) (rate(vllm:prompt_tokens_total{{{THEIRS}}}[$__rate_interval]))"
    return [
        panel(
            "timeseries",
            "Requests (vLLM)",
            "From the server's own metrics.",
            (12, 7),
            [
                query(f"sum by (job) (vllm:num_requests_running{{{THEIRS}}})", "{{job}} running"),
                query(f"sum by (job) (vllm:num_requests_waiting{{{THEIRS}}})", "{{job}} waiting"),
            ],
            lines("none"),
        ),
        panel(
            "timeseries",
            "Tokens per second (vLLM)",
            "From the server's own metrics.",
            (12, 7),
            [query(generated, "{{job}} generated"), query(prompts, "{{job}} prompt")],
            lines("none"),
        ),
    ]
