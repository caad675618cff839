"""Puts the values that were read into the tree of Settings."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vllmd.config import schema
from vllmd.model.decision import Target
from vllmd.model.settings import DEFAULT_GUARDS, Bounds, Guard, Settings


def build_settings(name: str, values: Mapping[str, Any], origins: Mapping[str, str]) -> Settings:
    """Return the defaults with these values ("section.key" to what its reader returned) in their place."""
    parts = _fields(values)
    default = Settings()
    return replace(
        default,
        name=name,
        modes=replace(default.modes, **parts["modes"]),
        engine=replace(default.engine, **parts["engine"]),
        slo=replace(default.slo, targets=_targets(values), **parts["slo"]),
        guard=_guard(values),
        budget=replace(default.budget, **parts["budget"]),
        policies=replace(default.policies, **parts["policies"]),
        listen=replace(default.listen, **parts["listen"]),
        log=replace(default.log, **parts["log"]),
        origins=origins,
        **parts[""],
    )


def _fields(values: Mapping[str, Any]) -> defaultdict[str, dict[str, Any]]:
    """Return {part: {field: value}} of everything that fills a field by itself; "" is Settings itself."""
    parts: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    for key in schema.KEYS:
        if key.path not in values or not key.fields:
            continue
        read = values[key.path]
        for field, value in zip(key.fields, read if len(key.fields) > 1 else (read,), strict=True):
            part, _, attribute = field.rpartition(".")
            parts[part][attribute] = value
    return parts


def _targets(values: Mapping[str, Any]) -> tuple[Target, ...]:
    return tuple(
        Target(path.removeprefix("slo."), metric, share, values[path])
        for path, (metric, share) in schema.TARGETS.items()
        if path in values
    )


def _guard(values: Mapping[str, Any]) -> Guard:
    """Return the default guards, with the operator's entries in place of the same flags' ones.

    An entry with a table has exactly its bounds; true keeps the default ones; false is frozen.
    """
    bounds = dict(DEFAULT_GUARDS)
    frozen = set(values.get("guard.frozen", ()))
    for path, permission in values.items():
        flag = schema.guarded_flag(path)
        if flag is None:
            continue
        if permission is False:
            bounds.pop(flag, None)
            frozen.add(flag)
        elif permission is True:
            bounds[flag] = DEFAULT_GUARDS.get(flag, Bounds())
        else:
            bounds[flag] = Bounds(*(values.get(f"{path}.{bound}") for bound in schema.BOUND_NAMES))
    return Guard(bounds, frozenset(frozen))
